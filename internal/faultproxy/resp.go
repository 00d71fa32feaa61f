package faultproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// respWire speaks RESP2 and RESP3. Source: Redis documentation, "Redis
// serialization protocol specification".
type respWire struct{}

// handshake: HELLO and AUTH are commands like any other.
func (respWire) handshake(_, _ *bufio.Reader, _, _ func([]byte)) error { return nil }

func (respWire) request(client *bufio.Reader) (request, error) {
	raw, err := value(client)
	if err != nil {
		return request{}, err
	}
	return request{raw: raw, message: raw, kind: raw[0]}, nil
}

// solicited: a push message of RESP3 stands between replies.
func (respWire) solicited(first byte) bool { return first != '>' }

func (respWire) reply(server *bufio.Reader, _ byte, emit func([]byte)) error {
	raw, err := value(server)
	if err != nil {
		return err
	}
	emit(raw)
	return nil
}

// value reads one whole value with all it contains. An inline command, a line
// without a type, is a value too.
func value(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	for left := 1; left > 0; left-- {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		raw.Write(line)
		text := string(bytes.TrimRight(line[1:], "\r\n"))
		switch line[0] {
		case '$', '=', '!':
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("faultproxy: RESP length: %w", err)
			}
			if n < 0 {
				break // null
			}
			if _, err := io.CopyN(&raw, r, int64(n)+2); err != nil {
				return nil, err
			}
		case '*', '~', '>', '%', '|':
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("faultproxy: RESP length: %w", err)
			}
			if line[0] == '%' || line[0] == '|' {
				n *= 2
			}
			left += max(n, 0)
			if line[0] == '|' {
				left++ // an attribute is followed by what it belongs to
			}
		}
	}
	return raw.Bytes(), nil
}
