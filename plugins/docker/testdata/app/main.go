// Command app is the instance of the tests: it writes into its volume until it is told to end.
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
	case "blessed": // a health check that looks into the volume
		if _, err := os.Stat("/data/blessed"); err != nil {
			println("not blessed")
			os.Exit(1)
		}
	case "fail":
		if _, err := os.Stat("/data/blessed"); err != nil {
			os.Exit(7)
		}
		serve()
	case "stumble": // fails the first time
		_, blessed := os.Stat("/data/blessed")
		_, again := os.Stat("/data/again")
		if blessed != nil && again != nil {
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
