//go:build unix

package brokers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// server is a real server on loopback, in a separate process group and with its own directory.
type server struct {
	t       *testing.T
	dir     string
	port    int
	command []string
	env     []string
	// as is another user for the server if the tests run as root, or nil.
	as    *syscall.Credential
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	log   *os.File
}

// newServer creates the directory. The caller sets the command.
func newServer(t *testing.T) *server {
	t.Helper()
	if os.Getenv(realVariable) == "" {
		t.Skipf("tests with real brokers are disabled: `make test-brokers` sets %s", realVariable)
	}
	dir, err := os.MkdirTemp("", "brokers") // t.TempDir is too long for a Unix socket, and not readable by other users
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, port: freePort(t)}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			text, _ := os.ReadFile(s.log.Name())
			t.Logf("output of the server:\n%s", text[max(0, len(text)-4000):])
		}
		_ = s.log.Close()
		_ = os.RemoveAll(dir)
	})
	return s
}

// program finds the program of a server, also in directories that are only in the PATH of root.
func program(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		if found, _ := filepath.Glob(name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatalf("%s is not installed: `make test-brokers` installs it", names[0])
	return ""
}

// start starts the server and waits until it accepts connections.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.command[0], s.command[1:]...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, s.log, s.log
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.as}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(s.cmd, s.ended)
	testkit.Eventually(s.t, s.command[0]+" to listen", s.listens)
}

func (s *server) listens() error {
	select {
	case <-s.ended:
		s.t.Fatal("the server ended at once")
	default:
	}
	c, err := net.DialTimeout("tcp", localAddr(s.port), time.Second)
	if err != nil {
		log, _ := s.log.Stat() // a log that grows is progress, so Eventually continues to wait
		return fmt.Errorf("%w; its log has %d bytes", err, log.Size())
	}
	return c.Close()
}

// kill ends the server and its child processes at once.
func (s *server) kill() { s.stop(syscall.SIGKILL) }

func (s *server) stop(signal syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, signal)
	<-s.ended
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // the rest of its group
	s.cmd = nil
}

func (s *server) freeze(frozen bool) {
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	processes := s.processes()
	for _, pid := range processes {
		_ = syscall.Kill(pid, signal)
	}
	// A thread continues until the signal reaches it.
	testkit.WaitFor(s.t, "the server has stopped", func() bool { return !frozen || allStopped(processes) })
}

// allStopped reports whether all threads of the processes are stopped.
func allStopped(processes []int) bool {
	for _, pid := range processes {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, file := range files {
			text, err := os.ReadFile(file)
			_, state, found := strings.Cut(string(text), ") ") // the name before it cannot contain this
			if err == nil && found && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
				return false
			}
		}
	}
	return true
}

// processes returns the server and its descendants, which may be in other process groups, from /proc.
func (s *server) processes() []int {
	list := []int{s.cmd.Process.Pid}
	for i := 0; i < len(list); i++ {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", list[i]))
		for _, file := range files {
			text, _ := os.ReadFile(file)
			for _, word := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(word); err == nil {
					list = append(list, pid)
				}
			}
		}
	}
	return list
}

// rig returns the server for runSuite.
func (s *server) rig(c Config, read func(*testing.T) []received) rig {
	return rig{config: c, read: read, kill: s.kill, restart: s.start, freeze: s.freeze}
}

// setOwner makes a user own the directory and run the server if the tests run as root.
func (s *server) setOwner(name string) {
	s.t.Helper()
	if os.Getuid() != 0 {
		return
	}
	u, err := user.Lookup(name)
	if err != nil {
		s.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(s.dir, uid, gid); err != nil {
		s.t.Fatal(err)
	}
	s.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// run runs the program of a client and returns its standard output.
func (s *server) run(env []string, command ...string) string {
	s.t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, stderr.String())
	}
	return stdout.String()
}

// copyFile copies a file into the directory, readable only by the server, as PostgreSQL requires for its key.
func (s *server) copyFile(path string) string {
	s.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	out := writeFile(s.t, filepath.Join(s.dir, filepath.Base(path)), string(text))
	if s.as != nil {
		if err := os.Chown(out, int(s.as.Uid), int(s.as.Gid)); err != nil {
			s.t.Fatal(err)
		}
	}
	return out
}

func (s *server) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// startNATS starts NATS with JetStream and a user.
func startNATS(t *testing.T) *server {
	t.Helper()
	s := newServer(t)
	conf := s.file("nats.conf", fmt.Sprintf("listen: 127.0.0.1:%d\njetstream: {store_dir: %q}\n"+
		"authorization: {users: [{user: %s, password: %q, permissions: {publish: {deny: \"hubrelay.denied.>\"}}}]}\n",
		s.port, s.dir, testUser, secret))
	s.command = []string{program(t, "nats-server", "/usr/sbin/nats-server"), "-c", conf}
	s.start()
	return s
}

func startMosquitto(t *testing.T) *server {
	t.Helper()
	s := newServer(t)
	passwords := filepath.Join(s.dir, "passwords")
	s.run(nil, program(t, "mosquitto_passwd"), "-c", "-b", passwords, testUser, secret)
	rules := s.file("rules", "user "+testUser+"\ntopic readwrite hubrelay/#\n")
	conf := s.file("mosquitto.conf", fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous false\n"+
		"password_file %s\nacl_file %s\nuser root\n"+
		"persistence true\npersistence_location %s/\nautosave_interval 1\nautosave_on_changes true\n"+
		"max_queued_messages 0\nmax_packet_size 1000000\n"+
		"log_type error\nlog_type warning\nlog_type notice\nlog_type subscribe\n", s.port, passwords, rules, s.dir))
	s.command = []string{program(t, "mosquitto", "/usr/sbin/mosquitto"), "-c", conf}
	s.start()
	return s
}

func startRedis(t *testing.T) *server {
	t.Helper()
	s := newServer(t)
	conf := s.file("redis.conf", fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsave \"\"\n"+
		"appendonly yes\nappendfsync always\nuser default off\nuser %s on >%s ~* +@all\n",
		s.port, s.dir, testUser, secret))
	s.command = []string{program(t, "redis-server"), conf}
	s.start()
	return s
}

// startPostgres starts PostgreSQL. It also accepts TLS connections of clients with a certificate from a.
func startPostgres(t *testing.T, a *authority) *server {
	t.Helper()
	s := newServer(t)
	s.setOwner("postgres")
	bin := filepath.Dir(program(t, "/usr/lib/postgresql/*/bin/postgres", "postgres"))
	data, password := filepath.Join(s.dir, "data"), s.file("password", secret)
	s.run(nil, filepath.Join(bin, "initdb"), "-D", data, "-U", testUser, "-A", "scram-sha-256",
		"--pwfile", password, "-E", "UTF8", "--no-locale")
	_, cert, key := a.issue()
	s.command = []string{
		filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-k", s.dir,
		"-c", "ssl=on", "-c", "ssl_cert_file=" + s.copyFile(cert), "-c", "ssl_key_file=" + s.copyFile(key),
		"-c", "ssl_ca_file=" + s.copyFile(a.file),
	}
	s.file("data/pg_hba.conf", "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"+
		"hostnossl all all 127.0.0.1/32 scram-sha-256\n")
	s.start()
	return s
}

// rabbitMaxMessage is the maximum size of a message of the started RabbitMQ, in bytes.
const rabbitMaxMessage = 1 << 20

// startRabbitMQ also starts Erlang's name server. Otherwise, Erlang would start one that outlives the test.
func startRabbitMQ(t *testing.T) *server {
	t.Helper()
	names := newServer(t)
	names.command = []string{program(t, "epmd"), "-address", "127.0.0.1", "-port", strconv.Itoa(names.port)}
	names.start()
	s := newServer(t)
	s.command = []string{program(t, "/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")}
	conf := s.file("rabbitmq.conf", fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\ndefault_user = %s\n"+
		"default_pass = %s\nlog.file.level = warning\nmax_message_size = %d\n",
		s.port, testUser, secret, rabbitMaxMessage))
	s.env = []string{
		"HOME=" + s.dir, fmt.Sprintf("RABBITMQ_NODENAME=hubrelay%d@localhost", s.port), "RABBITMQ_CONFIG_FILE=" + conf,
		"RABBITMQ_MNESIA_BASE=" + s.dir, "RABBITMQ_LOG_BASE=" + s.dir, "RABBITMQ_CONF_ENV_FILE=" + s.file("env", ""),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + s.file("plugins", "[].\n"),
		"RABBITMQ_PID_FILE=" + filepath.Join(s.dir, "pid"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(s.dir, "none"),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", freePort(t)), fmt.Sprintf("ERL_EPMD_PORT=%d", names.port),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		// Schedulers that wait busily take the processors from the other brokers.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none",
	}
	s.start()
	return s
}

// testFrozenServer expects an error in plain words from a frozen server, on an open connection and while dialing.
func (r rig) testFrozenServer(t *testing.T) {
	t.Helper()
	open, fresh := startSink(t, r.config), startSink(t, r.config)
	if err := r.deliver(t, open, newDelivery(1)); err != nil {
		t.Fatal(err)
	}
	r.freeze(true)
	defer r.freeze(false)
	plain := regexp.MustCompile(`the broker did not respond within \S+`)
	var wg sync.WaitGroup
	for state, s := range map[string]*Sink{"open": open, "fresh": fresh} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := s.Deliver(ctx, newDelivery(2))
			if outcome, _ := relay.Classify(err); err == nil || outcome != relay.OutcomeRetry ||
				!plain.MatchString(err.Error()) || strings.Contains(err.Error(), "tcp") {
				t.Errorf("%s connection: got %v, want that the broker did not respond in time", state, err)
			}
			t.Log(state, err)
		})
	}
	wg.Wait()
}

// testForbiddenRoutingKeys publishes messages with allowed and forbidden routing keys. RabbitMQ closes the channel for each
// forbidden one, which costs the others no attempt.
func (r rig) testForbiddenRoutingKeys(t *testing.T, s *server, ctl string) {
	t.Helper()
	s.run(s.env, ctl, "set_topic_permissions", testUser, "amq.topic", `^hubrelay\.hub_[0-2]$`, ".*")
	c := r.config
	c.RoutingKey = "hubrelay.{hub}"
	sink, want := startSink(t, c), map[string]relay.Delivery{}
	var wg sync.WaitGroup
	for i := range 70 {
		d := newDelivery(7_000_000 + i)
		allowed := d.Notifications[0].Hub < "hub.3"
		if allowed {
			want[d.ID] = d
		}
		wg.Go(func() {
			err := r.deliver(t, sink, d)
			key := strings.ReplaceAll(d.Notifications[0].Hub, ".", "_")
			outcome, _ := relay.Classify(err)
			switch {
			case allowed && err != nil:
				t.Errorf("allowed routing key %s: got %v", key, err)
			case !allowed && (err == nil || outcome != relay.OutcomeRetry || !strings.Contains(err.Error(), key) ||
				!strings.Contains(err.Error(), "topic permission")):
				t.Errorf("forbidden routing key %s: got %v, want a retry about the topic permission", key, err)
			}
		})
	}
	wg.Wait()
	if !t.Failed() { // it would wait for the messages that were not published
		r.waitForAll(t, want)
	}
}

// testAMQPPermissions removes the permissions of the user of a started RabbitMQ.
func (r rig) testAMQPPermissions(t *testing.T, s *server) {
	t.Helper()
	c, ctl := r.config, program(t, "/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl")
	r.testForbiddenRoutingKeys(t, s, ctl)
	s.run(s.env, ctl, "set_topic_permissions", testUser, "amq.topic", "^elsewhere", ".*")
	expectFailure(t, c, relay.OutcomeRetry, "topic permission", "hubrelay.container.created", "amq.topic")
	s.run(s.env, ctl, "set_permissions", testUser, "^elsewhere", "^elsewhere", ".*")
	expectFailure(t, c, relay.OutcomeRetry, "may not write to exchange", "amq.topic")
}
