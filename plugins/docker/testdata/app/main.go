// Command app is the instance of the tests. It writes to its volume until it receives SIGTERM.
package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "check": // a health check that requires the file marker in the volume
		if _, err := os.Stat("/data/marker"); err != nil {
			println("no marker")
			os.Exit(1)
		}
	case "fail": // fails without the marker
		if _, err := os.Stat("/data/marker"); err != nil {
			os.Exit(7)
		}
		serve()
	case "fail-once": // fails the first time without the marker
		_, noMarker := os.Stat("/data/marker")
		_, again := os.Stat("/data/again")
		if noMarker != nil && again != nil {
			_ = os.WriteFile("/data/again", nil, 0o600)
			os.Exit(7)
		}
		serve()
	default:
		serve()
	}
}

func serve() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	for {
		_ = os.WriteFile("/data/now", []byte(strconv.FormatInt(time.Now().UnixNano(), 10)), 0o600)
		select {
		case <-end:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
