//! A UDP proxy on loopback that loses, duplicates and reorders.

use super::Random;
use super::sockets::any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;

/// Starts a proxy in front of `server`, with a loss in thousandths. Returns its address.
pub(crate) async fn lossy(server: SocketAddr, loss: u64, seed: u64) -> SocketAddr {
    let front = Arc::new(UdpSocket::bind(any()).await.unwrap());
    let address = front.local_addr().unwrap();
    tokio::spawn(async move {
        let mut backs: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut random = Random::new(seed);
        let mut buf = vec![0; 65536];
        while let Ok((len, from)) = front.recv_from(&mut buf).await {
            let back = match backs.get(&from) {
                Some(back) => Arc::clone(back),
                None => {
                    let back = Arc::new(UdpSocket::bind(any()).await.unwrap());
                    back.connect(server).await.unwrap();
                    backs.insert(from, Arc::clone(&back));
                    let (front, back) = (Arc::clone(&front), Arc::clone(&back));
                    let returns = Random::new(seed ^ 1);
                    tokio::spawn(return_datagrams(
                        front,
                        Arc::clone(&back),
                        from,
                        loss,
                        returns,
                    ));
                    back
                }
            };
            let datagram = buf[..len].to_vec();
            forward(&mut random, loss, datagram, move |datagram| {
                let back = Arc::clone(&back);
                async move {
                    let _ = back.send(&datagram).await;
                }
            })
            .await;
        }
    });
    address
}

async fn return_datagrams(
    front: Arc<UdpSocket>,
    back: Arc<UdpSocket>,
    to: SocketAddr,
    loss: u64,
    mut random: Random,
) {
    let mut buf = vec![0; 65536];
    while let Ok(len) = back.recv(&mut buf).await {
        let datagram = buf[..len].to_vec();
        let front = Arc::clone(&front);
        forward(&mut random, loss, datagram, move |datagram| {
            let front = Arc::clone(&front);
            async move {
                let _ = front.send_to(&datagram, to).await;
            }
        })
        .await;
    }
}

async fn forward<F>(
    random: &mut Random,
    loss: u64,
    datagram: Vec<u8>,
    send: impl Fn(Vec<u8>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    if random.chance(loss) {
        return;
    }
    if random.chance(loss) {
        send(datagram.clone()).await;
    }
    if random.chance(loss) {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            send(datagram).await;
        });
    } else {
        send(datagram).await;
    }
}
