// Package examples holds small complete programs to copy from: clients that listen, a receiver of webhooks, and
// publishers. Its test runs every one of them against a real daemon.
//
// An example is as short as its error handling allows, and nothing in the daemon may depend on one.
package examples
