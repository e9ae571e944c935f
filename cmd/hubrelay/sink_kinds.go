package main

import (
	"os"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/daemon"
	"github.com/hubrelay/hubrelay/sinks"
)

func sinkKinds() []relay.SinkKind { return sinks.Kinds(os.Stdout, builtinNames()...) }

// configKinds are the sinks and the driver that a configuration may name.
func configKinds() daemon.Kinds {
	return daemon.Kinds{Sinks: sinkKinds(), Driver: host.DriverKind(builtinNames()...)}
}
