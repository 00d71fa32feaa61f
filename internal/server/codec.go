package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is protobuf's JSON, but that an unknown field is a mistake and not skipped: a misspelt ttl must not
// become the default. What it writes is compact, and the same for the same message.
type strictJSON struct{ name string }

// Name is the content type's.
func (c strictJSON) Name() string { return c.name }

var errNotProto = errors.New("not a protobuf message")

// Marshal writes a message.
func (c strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T: %w", v, errNotProto)
	}
	loose, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, loose); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Unmarshal reads a message.
func (c strictJSON) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	switch {
	case !ok:
		return fmt.Errorf("%T: %w", v, errNotProto)
	case len(bytes.TrimSpace(data)) == 0:
		return errors.New("the body is empty: send a JSON object")
	}
	return protojson.Unmarshal(data, m)
}

// MarshalStable writes a message in the one way that a GET needs.
func (c strictJSON) MarshalStable(v any) ([]byte, error) { return c.Marshal(v) }

// IsBinary says that it is text.
func (c strictJSON) IsBinary() bool { return false }
