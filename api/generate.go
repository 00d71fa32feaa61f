// Package api holds the protobuf definition of the data API and, below it, the code that buf generates from it.
//
// It promises that the names in twinhold/v1 are the ones on the wire, and it holds no code of its own.
package api

//go:generate go tool -modfile=../tools/buf/go.mod buf generate
