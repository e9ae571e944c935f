// Package docker is the driver of migrations between Docker hosts. A server is a Docker daemon, and an instance is the
// container that is named by the instance's ID. It is the program hubrelay-docker.
//
//	migration:
//	  driver:
//	    command: [hubrelay-docker]
//	    env: [PATH, SSH_AUTH_SOCK]              # only for ssh://
//	    config: {health_timeout: 2m, settle: 3s, keep_source_volumes: false}
//	  inventory_file: inventory.yaml
//
// # Servers
//
// The settings of a server in the inventory define the connection to its Docker daemon:
//
//	{host: "unix:///var/run/docker.sock"}       Docker's default, also for {}
//	{host: "ssh://user@host"}                   with the program ssh and ~/.ssh of the daemon's user, without
//	                                            prompts; docker must be installed there
//	{host: "tcp://host:2376", tls: {ca_file: …, cert_file: …, key_file: …}}
//
// tcp without tls is accepted for loopback only. Paths are paths of the node, and every node needs them, because any
// node may run a job. Access to a Docker daemon is root access to its host, so the daemon that runs this driver has it
// too. In a container it needs the socket or, better, a key for ssh. A container moves with all of its rights, such as
// --privileged and paths of the host, and with its image: root on a source is root on the destinations of its
// instances. The oldest supported version is Docker 20.10 (API 1.41), which the tests use. The driver uses the API
// version of each host.
//
// # A migration
//
// While the instance runs, the driver checks what the destination lacks: networks, mounted host paths and devices,
// ports that another container uses, a free name of the container and its volumes, the processor type. If the image is
// missing, it is saved at the source and loaded at the destination, without a registry. It stays there in any case, and
// gets its name if the name is free. The new container is created with the complete configuration of the old one. Then
// the old one is stopped, volumes are copied, and the new one starts. Once it is healthy it gets the name, and the old
// one is removed. Its health check must succeed within health_timeout; without a health check it must run for settle. A
// container that was not running is moved and not started.
//
// With copy_volumes the volumes are streamed from host to host without compression (for slow lines ssh has
// Compression), read back, and compared by a checksum (xxHash64) of every entry: names, types, contents, modes, owners,
// times to the second, links, devices and file capabilities. Docker's archives omit other extended attributes, ACLs and
// sockets, and fill holes. Then the volumes at the source are removed, unless keep_source_volumes is set or another
// container uses them. The volumes of the new container are marked nocopy, so Docker does not fill empty ones from the
// image.
//
// Without copy_volumes the instance starts with new volumes. Those of a stateful instance stay at the source under
// their names, because Docker cannot rename volumes. They prevent its return to that server until an operator removes
// them (docker volume rm). A stateless instance uses an existing volume of that name, which stays in any case. So does
// any instance whose volume has its own driver or options, such as NFS, if they are the same at both ends. copy_volumes
// rejects such a volume.
//
// Aliases in networks are kept, and fixed addresses if they are free in the destination's subnet; the log reports lost
// ones. MAC addresses, the writable layer and logs of the container are not moved. Some containers cannot be moved:
// those with --rm, of a swarm, paused ones, and those that use another container's volumes, namespaces or links.
//
// After a failure before the new container is healthy, it and its volumes are removed and the old one runs again. After
// that, an undo completes the migration, because the new data is not at the source. A port that is used by a program
// outside of Docker is such a failure. If the destination does not answer, the unfinished container stays, never
// starts, and is removed by the next migration of the instance to that host. If it may run there, the source stays
// stopped until the destination answers.
//
// # Two nodes at once
//
// A migration has a lease, and the highest lease wins. Docker has no compare-and-set for labels, but names are unique,
// and a request for a name that does not exist fails. Therefore:
//
//   - A lease claims both hosts with an empty volume, hubrelay.lease.<instance>.<lease>. The highest one counts, and
//     lower ones are removed. One stays on each host; do not remove it.
//   - Containers in transit carry the lease: <instance>.arriving-<lease>.<job> is the new one.
//     <instance>.carrier-<lease> mounts the volumes for copying and is never started. <instance>.leaving-<lease>.… is
//     the old one, and is called left instead of leaving before the new one starts. A higher lease adopts them by
//     renaming them. The driver addresses them by name, so all requests of an outdated process fail.
//   - The name of the old container also contains what is needed to restore it: job, new container, whether it ran,
//     restart policy. Its restart policy is cleared during the migration, so a restart of Docker does not start it.
//   - Docker does nothing else with a container while files are copied from or to it. So a carrier can be adopted only
//     after the connection of the former process has ended. TCP keep-alive ends the connection of a frozen node, and
//     ServerAliveInterval with ssh.
//
// Two requests use no name with a lease: the first rename of the source, and creating objects at the destination. A
// process that was stopped just before one of them detects afterwards that it is outdated, and reverts it. For that
// moment the running instance has another name. If the process is killed in that moment, the next migration reverts it.
//
// The next step follows from the existing names, not from the memory of a process. Docker's volume prune before Docker
// 23 also removes the claims, and container prune removes the waiting containers. Run neither during a migration.
//
// This package imports only relay, plugins/sdk and Docker's client.
package docker
