// Command bench measures the promises of hubrelay about speed and prints one table. Each value has a baseline: a
// floor or a peer that is measured in the same run, on the same machine, with the same bytes.
//
// It is a separate module, so the peers are not in hubrelay's go.mod. It runs on Linux, uses only loopback and Unix
// sockets, starts and stops everything that it needs, and takes some minutes, or more on a busy machine. While it
// measures scheduled retries, its Redis uses 1 GiB.
//
// Load generators share the machine with what they load, so they use as little CPU time as possible: requests are
// prebuilt bytes on persistent connections, and clients drain their sockets periodically instead of for each message.
package main
