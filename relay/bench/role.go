package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A role is a part of the bench that runs in a separate process, so its CPU time is counted separately. It exchanges
// lines with its parent process over its standard input and output.
const (
	roleVariable = "HUBRELAY_BENCH_ROLE"
	roleFloor    = "floor"
	roleClients  = "clients"
	roleReceiver = "receiver"
	roleLoop     = "loop"
	rolePoster   = "poster"
	roleHost     = "host"
	rolePlugin   = "plugin"
	roleEcho     = "echo"
	roleDriver   = "driver"
	roleMover    = "mover"
)

func playRole(role string, args []string) error {
	lines := bufio.NewScanner(os.Stdin)
	switch role {
	case roleFloor:
		return playFloor(lines)
	case roleClients:
		return playClients(lines, args)
	case roleReceiver:
		return playReceiver(lines)
	case roleLoop:
		return playLoop(lines, args)
	case rolePoster:
		return playPoster(lines, args)
	case roleHost:
		return playHost(lines)
	case rolePlugin:
		return playPlugin()
	case roleEcho:
		return playEcho(args)
	case roleDriver:
		return playDriver()
	case roleMover:
		return playMover(lines, args)
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

// part is a process with a role.
type part struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startRole(ctx context.Context, role string, args ...string) (*part, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &part{cmd: exec.CommandContext(ctx, self, args...)}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	return p, p.cmd.Start()
}

// readLine waits for the next line that the part prints.
func (p *part) readLine() (string, error) {
	if !p.out.Scan() {
		return "", errors.Join(errors.New("a part of the bench ended early"), p.out.Err())
	}
	return p.out.Text(), nil
}

// sendLine sends a line to the part.
func (p *part) sendLine(words ...any) error {
	_, err := fmt.Fprintln(p.in, words...)
	return err
}

// request sends a line and waits for the response.
func (p *part) request(words ...any) (string, error) {
	if err := p.sendLine(words...); err != nil {
		return "", err
	}
	return p.readLine()
}

// requestP99 returns a 99th percentile in milliseconds.
func (p *part) requestP99() (float64, error) {
	response, err := p.request("p99")
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(response, 64)
	return ns / float64(time.Millisecond), err
}

// stop closes the input of the part, which ends it, and kills it in case it hangs.
func (p *part) stop() {
	_ = p.in.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// readCommand reads the next line from the parent process.
func readCommand(lines *bufio.Scanner) (string, error) {
	if !lines.Scan() {
		return "", errors.Join(io.EOF, lines.Err())
	}
	return strings.TrimSpace(lines.Text()), nil
}
