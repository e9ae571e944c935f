package plugintest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

// sampleDelivery returns a delivery of one notification of about size bytes.
func sampleDelivery(id string, size int) relay.Delivery {
	const topic = "container.instance.state.changed"
	data := fmt.Sprintf(`{"topic":%q,"object":{"id":"instance-1","state":"running","error":""},"context":{`+
		`"hub_id":"hub1","account_id":"acc1",`+
		`"environments":[],"dns_zones":[],"clusters":[],"containers":["c1"],"padding":%q},"flags":null}`,
		topic, strings.Repeat("x", size))
	return relay.Delivery{ID: id, Attempt: 1, Notifications: []relay.Notification{{
		ID: id, Topic: topic, Hub: "hub1", Account: "acc1", Cursor: "1-0", Data: []byte(data),
	}}}
}

func sampleDigest(n int) relay.Delivery {
	at := time.Date(2026, 11, 20, 23, 59, 58, 0, time.UTC)
	d := relay.Delivery{ID: "digest", Digest: &relay.Digest{
		Count: 2 * n, First: at, Last: at.Add(time.Minute),
		Shared: map[string]string{"hub": "hub1"}, Topics: map[string]int{"container.instance.state.changed": 2 * n},
	}}
	for i := range n {
		d.Notifications = append(d.Notifications, sampleDelivery(fmt.Sprintf("digest-%d", i), 100).Notifications...)
	}
	return d
}

// dieWithoutDaemon starts the program as a daemon would, and closes its standard input.
func dieWithoutDaemon(ctx context.Context, p Plugin) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.StartupTimeout+orphanTime)
	defer cancel()
	folder, err := os.MkdirTemp("", "hubrelay-check")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	program, args, err := host.Resolve(p.Command)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append([]string{}, p.Env...), host.HandshakeEnv(p.Kind, folder)...)
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, said := bufio.NewReader(out).ReadString('\n')
	closed := in.Close()
	defer time.AfterFunc(orphanTime, cancel).Stop()
	_ = cmd.Wait() // the exit status does not matter
	switch {
	case said != nil:
		return fmt.Errorf("it did not write its handshake: %w", said)
	case closed != nil:
		return closed
	case ctx.Err() != nil:
		return fmt.Errorf("it still ran %s later: read the standard input and exit at its end", orphanTime)
	}
	return nil
}

const orphanTime = 3 * time.Second
