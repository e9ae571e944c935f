// Package wire converts between the relay's structs and the messages of the protocol, for both sides: plugins/host and
// plugins/sdk.
//
// Only these packages use protobuf. This one starts no goroutines and makes no calls.
package wire
