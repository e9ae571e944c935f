// Package wire turns the relay's plain structs into the protocol's messages and back, for the two adapters: the host in
// plugins, and plugins/sdk.
//
// Nothing else of the project knows protobuf, and nothing that runs comes in here.
package wire
