// Command bench measures what hubrelay promises about speed and prints one table: each figure beside a floor or a
// peer that is measured in the same run, on the same machine, with the same bytes.
//
// It is a module of its own, so that the peers it compares with stay out of hubrelay's go.mod. It runs on Linux, on
// loopback and unix sockets only, starts everything it needs and stops it again, and takes some minutes; on a busy
// machine more. While it measures parked retries its Redis holds a GiB.
//
// Load generators share the machine with what they load, so they are as cheap as they can be: requests are prebuilt
// bytes on kept-alive connections, and listeners empty their sockets now and then instead of for each message.
package main
