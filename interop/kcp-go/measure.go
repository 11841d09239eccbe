// The modes that `versus rudp` starts, with both ends in this process. Each prints the address that it
// listens on, reads a line with the addresses to connect to (of paths that lead there), one per session,
// and prints its figures in one line.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// Bytes of an echo and of a paced message, and of a message of fanout.
const message, fanoutMessage = 1024, 200

// The time between two messages of a paced session, and of a fanout session.
const pace, fanoutPace = 5 * time.Millisecond, 50 * time.Millisecond

func scenario(mode string) func([]string, *kcp.Listener) ([]float64, error) {
	switch mode {
	case "bulk":
		return bulk
	case "pingpong":
		return pingpong
	case "paced":
		return paced
	case "fanout":
		return fanout
	case "idle":
		return idle
	}
	return nil
}

func measure(address string, run func([]string, *kcp.Listener) ([]float64, error)) error {
	listener, err := kcp.ListenWithOptions(address, nil, *parity, *parity)
	if err != nil {
		return err
	}
	listener.SetReadBuffer(4 << 20)
	listener.SetWriteBuffer(4 << 20)
	fmt.Println(listener.Addr())
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	figures, err := run(strings.Fields(line), listener)
	if err != nil {
		return err
	}
	for _, figure := range figures {
		fmt.Print(figure, " ")
	}
	fmt.Println()
	return nil
}

// Both ends of a session that has carried data.
func pair(to string, listener *kcp.Listener) (client, server *kcp.UDPSession, err error) {
	if client, err = connect(to); err != nil {
		return
	}
	if _, err = client.Write([]byte{7}); err != nil {
		return
	}
	if server, err = listener.AcceptKCP(); err != nil {
		return
	}
	tune(server)
	_, err = io.ReadFull(server, make([]byte, 1))
	return
}

func cpu() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Bytes received in the window, its seconds, CPU nanoseconds, heap allocations.
func bulk(to []string, listener *kcp.Listener) ([]float64, error) {
	client, server, err := pair(to[0], listener)
	if err != nil {
		return nil, err
	}
	go func() {
		piece := make([]byte, 64<<10)
		for {
			if _, err := client.Write(piece); err != nil {
				return
			}
		}
	}()
	read(server, *after)
	begin, used, count := time.Now(), cpu(), allocations()
	total := read(server, *length)
	took, spent := time.Since(begin), cpu()-used
	return []float64{total, took.Seconds(), float64(spent.Nanoseconds()), float64(allocations() - count)}, nil
}

func allocations() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}

// Bytes received within the window.
func read(server *kcp.UDPSession, window time.Duration) float64 {
	buf, total := make([]byte, 64<<10), 0
	begin := time.Now()
	server.SetReadDeadline(begin.Add(window + window/8))
	for time.Since(begin) < window {
		n, err := server.Read(buf)
		if err != nil {
			break
		}
		total += n
	}
	return float64(total)
}

// CPU seconds of this end per gigabyte sent to a sink elsewhere.
func send(address string) error {
	client, err := connect(address)
	if err != nil {
		return err
	}
	begin, used, total := time.Now(), cpu(), 0
	piece := make([]byte, 64<<10)
	for time.Since(begin) < *length {
		n, err := client.Write(piece)
		if err != nil {
			return err
		}
		total += n
	}
	fmt.Println((cpu() - used).Seconds() / (float64(total) / 1e9))
	return nil
}

func percentile(times []time.Duration, percent int) time.Duration {
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	return times[min(len(times)*percent/100, len(times)-1)]
}

// The median and the 99th percentile, in microseconds.
func pingpong(to []string, listener *kcp.Listener) ([]float64, error) {
	client, server, err := pair(to[0], listener)
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, message)
		for {
			if _, err := io.ReadFull(server, buf); err != nil {
				return
			}
			server.Write(buf)
		}
	}()
	buf := make([]byte, message)
	times := make([]time.Duration, 0, *echoes*2)
	for n := 0; n < *echoes+*echoes/10; n++ {
		begin := time.Now()
		if _, err := client.Write(buf); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(client, buf); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
	}
	times = times[*echoes/10:]
	micros := func(percent int) float64 { return float64(percentile(times, percent).Nanoseconds()) / 1e3 }
	return []float64{micros(50), micros(99)}, nil
}

// The 99th percentile of the time from a message's Write until it is read, in milliseconds: for the sessions
// in the first half of the addresses, and for those in the second.
func paced(to []string, listener *kcp.Listener) ([]float64, error) {
	type end struct {
		session *kcp.UDPSession
		half    byte
	}
	var clients []end
	for n, address := range to {
		client, err := connect(address)
		if err != nil {
			return nil, err
		}
		half := byte(n * 2 / len(to))
		if _, err := client.Write([]byte{half}); err != nil {
			return nil, err
		}
		clients = append(clients, end{client, half})
	}
	// Accepted in order of arrival, which differs from the clients' order.
	var servers []end
	for range to {
		server, err := listener.AcceptKCP()
		if err != nil {
			return nil, err
		}
		tune(server)
		hello := make([]byte, 1)
		if _, err := io.ReadFull(server, hello); err != nil {
			return nil, err
		}
		servers = append(servers, end{server, hello[0]})
	}
	epoch := time.Now()
	for _, client := range clients {
		go func() {
			buf := make([]byte, message)
			for n := 0; n < *messages; n++ {
				time.Sleep(time.Until(epoch.Add(time.Duration(n) * pace)))
				binary.LittleEndian.PutUint64(buf, uint64(time.Since(epoch)))
				if _, err := client.session.Write(buf); err != nil {
					return
				}
			}
		}()
	}
	var all [2][]time.Duration
	var lock sync.Mutex
	var reading sync.WaitGroup
	for _, server := range servers {
		reading.Add(1)
		go func() {
			defer reading.Done()
			buf := make([]byte, message)
			for n := 0; n < *messages; n++ {
				if _, err := io.ReadFull(server.session, buf); err != nil {
					return
				}
				took := time.Since(epoch) - time.Duration(binary.LittleEndian.Uint64(buf))
				lock.Lock()
				all[server.half] = append(all[server.half], took)
				lock.Unlock()
			}
		}()
	}
	reading.Wait()
	var figures []float64
	for _, times := range all {
		if len(times) < len(to)/2**messages {
			return nil, errors.New("messages are missing")
		}
		figures = append(figures, float64(percentile(times, 99).Nanoseconds())/1e6)
	}
	return figures, nil
}

// CPU microseconds per message, both ends.
func fanout(to []string, listener *kcp.Listener) ([]float64, error) {
	var servers []*kcp.UDPSession
	var received atomic.Int64
	for _, address := range to {
		client, server, err := pair(address, listener)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
		go func() {
			buf := make([]byte, fanoutMessage)
			for {
				if _, err := io.ReadFull(client, buf); err != nil {
					return
				}
				received.Add(1)
			}
		}()
	}
	turns := int(fanoutPace / time.Millisecond)
	begin, used, sent := time.Now(), cpu(), int64(0)
	buf := make([]byte, fanoutMessage)
	for turn := 0; time.Since(begin) < *length; turn++ {
		for n := turn % turns; n < len(servers); n += turns {
			if _, err := servers[n].Write(buf); err != nil {
				return nil, err
			}
			sent++
		}
		time.Sleep(time.Until(begin.Add(time.Duration(turn+1) * time.Millisecond)))
	}
	spent := cpu() - used
	for received.Load() < sent {
		time.Sleep(time.Millisecond)
	}
	return []float64{float64(spent.Nanoseconds()) / 1e3 / float64(sent)}, nil
}

func memory() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}

// Heap and stack bytes per idle end, and CPU microseconds per session and second.
func idle(to []string, listener *kcp.Listener) ([]float64, error) {
	var kept []*kcp.UDPSession
	open := func(address string) error {
		client, server, err := pair(address, listener)
		kept = append(kept, client, server)
		return err
	}
	// What exists only once does not count.
	if err := open(to[0]); err != nil {
		return nil, err
	}
	time.Sleep(*after)
	before := memory()
	for _, address := range to {
		if err := open(address); err != nil {
			return nil, err
		}
	}
	time.Sleep(*after)
	grown := float64(memory()) - float64(before)
	begin, used := time.Now(), cpu()
	time.Sleep(*length)
	spent, took := cpu()-used, time.Since(begin)
	sessions := float64(len(to))
	for _, session := range kept {
		session.Close()
	}
	return []float64{grown / 2 / sessions, float64(spent.Nanoseconds()) / 1e3 / sessions / took.Seconds()}, nil
}

// A separate socket, with the same buffer sizes as the others.
func connect(address string) (*kcp.UDPSession, error) {
	peer, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	socket.SetReadBuffer(4 << 20)
	socket.SetWriteBuffer(4 << 20)
	session, err := kcp.NewConn3(uint32(*conv), peer, nil, *parity, *parity, socket)
	if err != nil {
		return nil, err
	}
	tune(session)
	return session, nil
}
