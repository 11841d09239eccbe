package main

import (
	"fmt"
	"io"
	"sort"
	"syscall"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// Both ends in this process.
func pair(address string) (*kcp.UDPSession, *kcp.Listener, error) {
	listener, err := kcp.ListenWithOptions(address, nil, 0, 0)
	if err != nil {
		return nil, nil, err
	}
	listener.SetReadBuffer(4 << 20)
	listener.SetWriteBuffer(4 << 20)
	client, err := connect(listener.Addr().String())
	return client, listener, err
}

func cpu() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Prints megabytes a second, and CPU seconds for a gigabyte.
func bulk(address string) error {
	client, listener, err := pair(address)
	if err != nil {
		return err
	}
	total := *megabyte << 20
	piece := make([]byte, 64<<10)
	begin, used := time.Now(), cpu()
	go func() {
		for sent := 0; sent < total; sent += len(piece) {
			if _, err := client.Write(piece); err != nil {
				return
			}
		}
	}()
	server, err := listener.AcceptKCP()
	if err != nil {
		return err
	}
	tune(server)
	if _, err := io.CopyBuffer(io.Discard, io.LimitReader(onlyReader{server}, int64(total)), make([]byte, 64<<10)); err != nil {
		return err
	}
	took, used := time.Since(begin), cpu()-used
	fmt.Println(float64(total)/1e6/took.Seconds(), used.Seconds()/(float64(total)/1e9))
	return nil
}

type onlyReader struct{ io.Reader }

// Prints the median and the 99th percentile, in microseconds.
func pingpong(address string) error {
	client, listener, err := pair(address)
	if err != nil {
		return err
	}
	go func() {
		server, err := listener.AcceptKCP()
		if err != nil {
			return
		}
		tune(server)
		buf := make([]byte, 1024)
		for {
			if _, err := io.ReadFull(server, buf); err != nil {
				return
			}
			server.Write(buf)
		}
	}()
	buf := make([]byte, 1024)
	times := make([]time.Duration, 0, *echoes)
	for n := 0; n < *echoes; n++ {
		begin := time.Now()
		if _, err := client.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(client, buf); err != nil {
			return err
		}
		times = append(times, time.Since(begin))
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	micros := func(at int) float64 { return float64(times[at].Nanoseconds()) / 1e3 }
	fmt.Println(micros(len(times)/2), micros(len(times)*99/100))
	return nil
}
