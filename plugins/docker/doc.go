// Package docker is the driver of migrations between Docker hosts: a server is a Docker daemon, an instance the container
// whose name is the instance's id. It is a program of its own, hubrelay-docker.
//
//	migration:
//	  driver:
//	    command: [hubrelay-docker]
//	    env: [PATH, SSH_AUTH_SOCK]              # for ssh:// alone
//	    config: {health_timeout: 2m, settle: 3s, keep_source_volumes: false}
//	  inventory_file: inventory.yaml
//
// # Servers
//
// The inventory says of each server how its Docker daemon is reached:
//
//	{host: "unix:///var/run/docker.sock"}       Docker's own default, also of {}
//	{host: "ssh://user@host"}                   by the program ssh, with what the daemon's user has in ~/.ssh; it must
//	                                            ask nothing, and docker is installed there
//	{host: "tcp://host:2376", tls: {ca_file: …, cert_file: …, key_file: …}}
//
// tcp without tls is taken for loopback only. Paths are those of the node, and every node needs them, since any may carry out a
// job. Who reaches a Docker daemon is root on its host, and so is the daemon that runs this driver: in a container it
// needs the socket, or better a key for ssh. A container moves with all that it may do, such as
// --privileged and paths of the host, and its image with it: who is root at a source is root where its instances move. The tests run Docker 20.10 (API 1.41), the oldest
// that will do; each host is spoken to in its own version.
//
// # A migration
//
// While the instance runs, everything is found that the destination lacks: networks, paths of the host and devices that it mounts,
// ports that another container has, a container or volume of the same name, another processor. The image, if it is not there, is
// saved at the source and loaded at the destination, without a registry; it stays there whatever happens, and gets its
// name where that is free. The new container is made with the whole configuration of the old one. Then the old one is
// stopped, volumes are copied, the new one starts, and once it is healthy it takes the name and the old one is removed.
// Healthy is what its health check says within health_timeout; without one it must run for settle. A container
// that was not running is moved and not started.
//
// With copy_volumes the volumes are streamed from host to host, not packed (for slow lines there is Compression of ssh), read back, and compared by a checksum (xxHash64) of every entry: names, types,
// contents, modes, owners, times to the second, links, devices and file capabilities. Docker's archives leave out other extended
// attributes, ACLs and sockets, and fill holes. Then the volumes at the source are removed, unless keep_source_volumes is set or another container
// uses them. The new container's volumes are marked nocopy, so that Docker does not fill empty ones from the image.
//
// Without copy_volumes the instance starts with new volumes. Those of a stateful one stay at the source under their names, since Docker
// cannot rename volumes, and keep the instance from coming back there until somebody removes them (docker volume rm). An
// instance that is not stateful uses a volume that is there already, which stays whatever happens. So does any instance whose volume has a driver or
// options of its own, such as NFS, if they are the same at both ends; copy_volumes refuses such a volume.
//
// Kept from the networks are aliases, and fixed addresses where the destination's subnet has them and nobody else; the log says
// where not. MAC addresses, the container's own writable layer and its logs stay behind. Not moved at all: containers of
// --rm, of a swarm, paused ones, and those that use another container's volumes, namespaces or links.
//
// Whatever goes wrong before the new container is healthy, it and its volumes are removed and the old one runs again. From then on
// a migration that is to be undone is completed, since what was written there is not at the source. A
// port that a program outside of Docker has is such a case. When the destination does not answer, what was begun there stays, never
// starts, and is removed by the next migration of the instance to it. When it may run the instance, the source stays stopped until
// it answers.
//
// # Two nodes at once
//
// A migration has a lease number, and the highest wins. Docker has no compare-and-set for labels, but names are unique, and a
// request for a name that is gone fails. So:
//
//   - A lease claims both hosts by an empty volume, hubrelay.lease.<instance>.<lease>. The highest that exists counts; lower
//     ones are removed. One stays at each host: leave it there.
//   - Containers on their way carry the lease: <instance>.arriving-<lease>.<job> is the new one and <instance>.carrier-<lease> has the volumes
//     for copying and is never started; <instance>.leaving-<lease>.… is the old one, and is called left instead of leaving before
//     the new one is started. A higher lease takes them over by renaming them. The driver addresses them by name, so
//     that everything which an overtaken process still asks for fails.
//   - The old one's name also says what it takes to put it back: job, new container, whether it ran, restart policy. Its restart
//     policy is cleared while it is away, so that no restart of Docker brings it up.
//   - Docker does nothing else to a container while files are copied from or to it. So nobody takes a carrier over before the
//     connection of the former process has ended; a frozen node's ends by TCP keep-alive, with ssh by ServerAliveInterval.
//
// Two requests name nothing that carries a lease: the first rename of the source, and making things at the destination. A process
// that was stopped right before one of them sees afterwards that it was overtaken, and takes it back: for that moment the running
// instance has another name. If it is killed in that moment, the next migration takes it back.
//
// What is to be done follows from which names exist, not from what a process remembers. Docker's volume prune, before Docker 23,
// also removes the claims, and container prune what waits at the destination or the stopped source: run neither during a migration.
//
// Like every plugin it imports relay and plugins/sdk only, and Docker's client.
package docker
