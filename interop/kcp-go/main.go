// A peer for slab-net's RUDP, built on kcp-go.
//
//	kcp-go-peer [flags] echo|sink ADDRESS    listens, and prints its address
//	kcp-go-peer [flags] ask|fill|chat ADDRESS    connects
//	kcp-go-peer [flags] send ADDRESS    measures the CPU time of sending there
//	kcp-go-peer [flags] bulk|pingpong|paced|fanout|idle ADDRESS    measures with both ends in itself
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

var (
	stream   = flag.Bool("stream", false, "use stream mode")
	conv     = flag.Uint("conv", 1, "conversation id, when connecting")
	mtu      = flag.Int("mtu", 1400, "maximum length of a datagram in bytes")
	interval = flag.Int("interval", 10, "KCP interval in milliseconds; 10 also turns nodelay on")
	window   = flag.Int("window", 1024, "send and receive window in segments")
	megabyte = flag.Int("megabytes", 100, "megabytes that fill sends")
	delay    = flag.Bool("writedelay", false, "delay writes until the next interval")
	nodelay  = flag.Bool("acknodelay", false, "acknowledge immediately")
	echoes   = flag.Int("echoes", 20000, "echoes of 1 KiB that pingpong makes")
	messages = flag.Int("messages", 200, "messages of 1 KiB that each session of paced sends")
	parity   = flag.Int("parity", 0, "parity shards, and as many data shards, when measuring")
	after    = flag.Duration("after", 0, "time that bulk sends before it measures, and that idle waits")
	length   = flag.Duration("for", time.Second, "time that send, bulk, fanout and idle measure")
)

func tune(session *kcp.UDPSession) {
	session.SetStreamMode(*stream)
	session.SetWriteDelay(*delay)
	session.SetACKNoDelay(*nodelay)
	session.SetWindowSize(*window, *window)
	session.SetMtu(*mtu)
	if *interval == 10 {
		session.SetNoDelay(1, 10, 2, 1)
	} else {
		session.SetNoDelay(0, *interval, 0, 0)
	}
}

func listen(address string, serve func(*kcp.UDPSession)) error {
	listener, err := listenProtected(address)
	if err != nil {
		return err
	}
	listener.SetReadBuffer(4 << 20)
	listener.SetWriteBuffer(4 << 20)
	fmt.Println(listener.Addr())
	for {
		session, err := listener.AcceptKCP()
		if err != nil {
			return err
		}
		tune(session)
		go serve(session)
	}
}

func echo(session *kcp.UDPSession) {
	buf := make([]byte, 1<<20)
	for {
		n, err := session.Read(buf)
		if err != nil {
			return
		}
		if _, err := session.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Sends pieces of all lengths and expects each back before the next.
func ask(session *kcp.UDPSession) error {
	buf := make([]byte, 1<<20)
	for seed, length := range []int{1, 24, 1375, 1377, 9000, 100_000} {
		data := make([]byte, length)
		rand.New(rand.NewSource(int64(seed))).Read(data)
		if _, err := session.Write(data); err != nil {
			return err
		}
		var answer []byte
		session.SetReadDeadline(time.Now().Add(20 * time.Second))
		for len(answer) < length {
			n, err := session.Read(buf)
			if err != nil {
				return fmt.Errorf("after %d of %d bytes: %w", len(answer), length, err)
			}
			answer = append(answer, buf[:n]...)
		}
		if !bytes.Equal(answer, data) {
			return fmt.Errorf("%d bytes came back changed", length)
		}
	}
	fmt.Println("recovered", kcp.DefaultSnmp.Copy().FECRecovered)
	return nil
}

func sink(session *kcp.UDPSession) {
	buf := make([]byte, 1<<20)
	for {
		if _, err := session.Read(buf); err != nil {
			return
		}
	}
}

func fill(session *kcp.UDPSession) error {
	data := make([]byte, 64<<10)
	for n := 0; n < *megabyte*16; n++ {
		if _, err := session.Write(data); err != nil {
			return err
		}
	}
	// Exiting now would lose what is still on its way.
	_, err := session.Read(data)
	return err
}

// Lines from the terminal go to the peer, and the peer's lines to the terminal.
func chat(session *kcp.UDPSession) error {
	go io.Copy(os.Stdout, session)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := fmt.Fprintln(session, lines.Text()); err != nil {
			return err
		}
	}
	// Wait for the last answer.
	time.Sleep(500 * time.Millisecond)
	return lines.Err()
}

func run(mode, address string) error {
	if figures := scenario(mode); figures != nil {
		return measure(address, figures)
	}
	switch mode {
	case "send":
		return send(address)
	case "echo":
		return listen(address, echo)
	case "sink":
		return listen(address, sink)
	}
	session, err := connectProtected(address)
	if err != nil {
		return err
	}
	switch mode {
	case "ask":
		return ask(session)
	case "fill":
		return fill(session)
	case "chat":
		return chat(session)
	}
	return errors.New("unknown mode " + mode)
}

func main() {
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatal(err)
	}
}
