package faultproxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The parts of MySQL's client/server protocol that say where a reply ends.
// Source: MySQL internals manual, "Client/Server Protocol".
const (
	capCompress     = 0x20
	capSSL          = 0x800
	capZstd         = 0x4000000
	capDeprecateEOF = 0x1000000

	comQuit         = 0x01
	comStatistics   = 0x09
	comStmtPrepare  = 0x16
	comStmtLongData = 0x18
	comStmtClose    = 0x19

	headOK          = 0x00
	headAuthMore    = 0x01
	headLocalInfile = 0xfb
	headEOF         = 0xfe
	headErr         = 0xff

	authFastOK      = 0x03
	statusMore      = 0x08
	maxPacket       = 0xffffff
	packetHeaderLen = 4
)

var errMalformed = errors.New("faultproxy: malformed MySQL packet")

type mysqlWire struct {
	deprecateEOF bool
}

// packet reads one logical packet: more physical ones follow a full one.
func packet(r *bufio.Reader) (raw, payload []byte, err error) {
	for {
		var header [packetHeaderLen]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return nil, nil, err
		}
		n := int(header[0]) | int(header[1])<<8 | int(header[2])<<16
		part := make([]byte, packetHeaderLen+n)
		copy(part, header[:])
		if _, err := io.ReadFull(r, part[packetHeaderLen:]); err != nil {
			return nil, nil, err
		}
		if raw == nil && n < maxPacket {
			return part, part[packetHeaderLen:], nil
		}
		raw, payload = append(raw, part...), append(payload, part[packetHeaderLen:]...)
		if n < maxPacket {
			return raw, payload, nil
		}
	}
}

// handshake goes on until the server says OK or refuses the login.
func (m *mysqlWire) handshake(client, server *bufio.Reader, toClient, toServer func([]byte)) error {
	greeted := false
	for {
		raw, payload, err := packet(server)
		if err != nil {
			return err
		}
		toClient(raw)
		switch {
		case len(payload) == 0:
			return errMalformed
		case payload[0] == headErr:
			return errors.New("faultproxy: the server refused the login")
		case greeted && payload[0] == headOK:
			return nil
		case payload[0] == headAuthMore && len(payload) > 1 && payload[1] == authFastOK:
			continue // OK follows
		}
		raw, payload, err = packet(client)
		if err != nil {
			return err
		}
		if !greeted {
			if err := m.capabilities(payload); err != nil {
				return err
			}
			greeted = true
		}
		toServer(raw)
	}
}

// capabilities reads the client's, which are a part of the server's.
func (m *mysqlWire) capabilities(response []byte) error {
	if len(response) < 4 {
		return errMalformed
	}
	caps := binary.LittleEndian.Uint32(response)
	if caps&(capSSL|capCompress|capZstd) != 0 {
		return fmt.Errorf("faultproxy: TLS and compression are not understood (capabilities %#x)", caps)
	}
	m.deprecateEOF = caps&capDeprecateEOF != 0
	return nil
}

func (m *mysqlWire) request(client *bufio.Reader) (request, error) {
	raw, payload, err := packet(client)
	if err != nil {
		return request{}, err
	}
	if len(payload) == 0 {
		return request{}, errMalformed
	}
	kind := payload[0]
	silent := kind == comQuit || kind == comStmtClose || kind == comStmtLongData
	return request{raw: raw, message: payload, kind: kind, silent: silent}, nil
}

func (*mysqlWire) solicited(byte) bool { return true }

func (m *mysqlWire) reply(server *bufio.Reader, kind byte, emit func([]byte)) error {
	next := func() ([]byte, error) {
		raw, payload, err := packet(server)
		if err != nil {
			return nil, err
		}
		emit(raw)
		if len(payload) == 0 {
			return nil, errMalformed
		}
		return payload, nil
	}
	switch kind {
	case 0, comStatistics: // a farewell that nobody asked for; a bare text
		_, err := next()
		return err
	case comStmtPrepare:
		return m.prepared(next)
	}
	for {
		more, err := m.result(next)
		if err != nil || !more {
			return err
		}
	}
}

// result reads one result of a command and reports whether another follows, as
// it does for a packet of several statements.
func (m *mysqlWire) result(next func() ([]byte, error)) (more bool, err error) {
	p, err := next()
	if err != nil {
		return false, err
	}
	switch p[0] {
	case headOK:
		return moreAfterOK(p)
	case headErr:
		return false, nil
	case headLocalInfile:
		return false, errors.New("faultproxy: LOAD DATA LOCAL is not understood")
	}
	columns, _, err := lenenc(p)
	if err != nil {
		return false, err
	}
	if err := m.definitions(next, columns); err != nil {
		return false, err
	}
	for {
		p, err := next()
		if err != nil || p[0] == headErr {
			return false, err
		}
		switch {
		case p[0] == headEOF && m.deprecateEOF && len(p) < maxPacket:
			return moreAfterOK(p)
		case p[0] == headEOF && !m.deprecateEOF && len(p) == 5:
			return p[3]&statusMore != 0, nil
		}
	}
}

// prepared reads the reply to a PREPARE: a head, then definitions of the
// parameters and of the columns.
func (m *mysqlWire) prepared(next func() ([]byte, error)) error {
	p, err := next()
	if err != nil || p[0] == headErr {
		return err
	}
	if len(p) < 9 {
		return errMalformed
	}
	columns, params := binary.LittleEndian.Uint16(p[5:]), binary.LittleEndian.Uint16(p[7:])
	for _, n := range []uint16{params, columns} {
		if n > 0 {
			if err := m.definitions(next, uint64(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *mysqlWire) definitions(next func() ([]byte, error), n uint64) error {
	if !m.deprecateEOF {
		n++ // the EOF packet after them
	}
	for ; n > 0; n-- {
		if _, err := next(); err != nil {
			return err
		}
	}
	return nil
}

// moreAfterOK reads the status flags of an OK packet.
func moreAfterOK(p []byte) (bool, error) {
	rest := p[1:]
	for range 2 { // affected rows, last insert id
		_, n, err := lenenc(rest)
		if err != nil {
			return false, err
		}
		rest = rest[n:]
	}
	if len(rest) < 2 {
		return false, errMalformed
	}
	return rest[0]&statusMore != 0, nil
}

// lenenc reads a length-encoded integer and how many bytes it takes.
func lenenc(b []byte) (uint64, int, error) {
	if len(b) == 0 {
		return 0, 0, errMalformed
	}
	size := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[b[0]]
	if size == 0 {
		return uint64(b[0]), 1, nil
	}
	if len(b) < 1+size {
		return 0, 0, errMalformed
	}
	var v uint64
	for i := size; i > 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v, 1 + size, nil
}
