package main

import (
	"encoding/hex"
	"flag"
	"fmt"
	"net"

	"github.com/xtaci/kcp-go/v5"
)

// Encryption and error correction, for all modes except those that measure.
var (
	shards = flag.String("shards", "", "data and parity shards of error correction, such as 10,3")
	key    = flag.String("key", "", "AES-GCM key in hexadecimal; no encryption if omitted")
)

func protection() (block kcp.BlockCrypt, data, parity int, err error) {
	if *shards != "" {
		if _, err = fmt.Sscanf(*shards, "%d,%d", &data, &parity); err != nil {
			return
		}
	}
	if *key != "" {
		var secret []byte
		if secret, err = hex.DecodeString(*key); err != nil {
			return
		}
		block, err = kcp.NewAESGCMCrypt(secret)
	}
	return
}

func listenProtected(address string) (*kcp.Listener, error) {
	block, data, parity, err := protection()
	if err != nil {
		return nil, err
	}
	return kcp.ListenWithOptions(address, block, data, parity)
}

func connectProtected(address string) (*kcp.UDPSession, error) {
	block, data, parity, err := protection()
	if err != nil {
		return nil, err
	}
	peer, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	session, err := kcp.NewConn3(uint32(*conv), peer, block, data, parity, socket)
	if err != nil {
		return nil, err
	}
	tune(session)
	return session, nil
}
