// Command hubrelay-docker is the plugin that migrates container instances between Docker hosts. hubrelay starts it.
// Package plugins/docker describes its configuration.
package main

import (
	"fmt"
	"os"

	"github.com/hubrelay/hubrelay/plugins/docker"
	"github.com/hubrelay/hubrelay/plugins/sdk"
)

var version = "devel" // set by the linker

func main() {
	config := docker.DefaultConfig()
	if err := sdk.ServeDriver(docker.New(&config), sdk.Config(&config), sdk.Version(version)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
