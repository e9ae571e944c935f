// Command bench measures the speed of hubrelay and prints one table. Each figure is compared with a baseline: a floor
// or another program, measured in the same run on the same machine with the same bytes.
//
// It is a separate module, so these programs stay out of hubrelay's go.mod. It runs on Linux, on loopback and unix
// sockets only. It starts and stops everything that it needs. A run takes about ten minutes, and longer on a busy
// machine. While it measures scheduled retries, its Redis holds a GiB.
//
// Load generators share the machine with the measured programs, so they use little CPU: requests are prebuilt bytes on
// kept-alive connections, and listeners drain their sockets periodically instead of per message.
package main
