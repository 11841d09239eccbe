// What `versus rudp` starts: both ends in this process. Each mode prints the address it listens at,
// reads a line with the addresses to connect to (of paths that lead there), one for each session,
// and prints its figures in a line.
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

// Between two messages of a paced session, and of a session of fanout.
const pace, fanoutPace = 5 * time.Millisecond, 50 * time.Millisecond

func measures(mode string) func([]string, *kcp.Listener) ([]float64, error) {
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
	listener, err := kcp.ListenWithOptions(address, nil, 0, 0)
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

// Both ends of a session that has been used.
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

// Megabytes a second that arrive in the window, and CPU seconds for a gigabyte.
func bulk(to []string, listener *kcp.Listener) ([]float64, error) {
	client, server, err := pair(to[0], listener)
	if err != nil {
		return nil, err
	}
	begin, used := time.Now(), cpu()
	go func() {
		piece := make([]byte, 64<<10)
		for {
			if _, err := client.Write(piece); err != nil {
				return
			}
		}
	}()
	buf, total := make([]byte, 64<<10), 0
	server.SetReadDeadline(begin.Add(*length + *length/8))
	for time.Since(begin) < *length {
		n, err := server.Read(buf)
		if err != nil {
			break
		}
		total += n
	}
	took, spent := time.Since(begin), cpu()-used
	return []float64{float64(total) / 1e6 / took.Seconds(), spent.Seconds() / (float64(total) / 1e9)}, nil
}

// CPU seconds of this end for a gigabyte that is sent to a sink elsewhere.
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

// The 99th percentile from a message's Write until it is read, in milliseconds.
func paced(to []string, listener *kcp.Listener) ([]float64, error) {
	var clients, servers []*kcp.UDPSession
	for _, address := range to {
		client, server, err := pair(address, listener)
		if err != nil {
			return nil, err
		}
		clients, servers = append(clients, client), append(servers, server)
	}
	epoch := time.Now()
	var all []time.Duration
	var lock sync.Mutex
	var reading sync.WaitGroup
	for session := range to {
		go func() {
			buf := make([]byte, message)
			for n := 0; n < *messages; n++ {
				time.Sleep(time.Until(epoch.Add(time.Duration(n) * pace)))
				binary.LittleEndian.PutUint64(buf, uint64(time.Since(epoch)))
				if _, err := clients[session].Write(buf); err != nil {
					return
				}
			}
		}()
		reading.Add(1)
		go func() {
			defer reading.Done()
			buf := make([]byte, message)
			var times []time.Duration
			for n := 0; n < *messages; n++ {
				if _, err := io.ReadFull(servers[session], buf); err != nil {
					return
				}
				times = append(times, time.Since(epoch)-time.Duration(binary.LittleEndian.Uint64(buf)))
			}
			lock.Lock()
			defer lock.Unlock()
			all = append(all, times...)
		}()
	}
	reading.Wait()
	if len(all) < len(to)**messages {
		return nil, errors.New("messages are missing")
	}
	return []float64{float64(percentile(all, 99).Nanoseconds()) / 1e6}, nil
}

// CPU microseconds for a message, both ends.
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

// Bytes of heap and stacks of an idle end, and CPU microseconds of a session each second.
func idle(to []string, listener *kcp.Listener) ([]float64, error) {
	var kept []*kcp.UDPSession
	open := func(address string) error {
		client, server, err := pair(address, listener)
		kept = append(kept, client, server)
		return err
	}
	// What is there once does not count.
	if err := open(to[0]); err != nil {
		return nil, err
	}
	settle := 150 * time.Millisecond
	time.Sleep(settle)
	before := memory()
	for _, address := range to {
		if err := open(address); err != nil {
			return nil, err
		}
	}
	time.Sleep(settle)
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

// A socket of its own, with the buffers of the others.
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
	session, err := kcp.NewConn3(uint32(*conv), peer, nil, 0, 0, socket)
	if err != nil {
		return nil, err
	}
	tune(session)
	return session, nil
}
