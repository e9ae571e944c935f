// Package directory is the migration driver builtin:directory. A server is a directory, and an instance is a directory
// in it. A migration stops the instance, copies it with checksums, and starts it on the other server.
//
//	migration: {driver: {command: ["builtin:directory"]}, inventory_file: inventory.yaml}
//
// # Servers
//
// The settings of a server in the inventory are {path: /srv/a}: the absolute path of an existing, writable directory,
// local or mounted. Directories of two servers must not contain each other. Every node needs all of them under the same
// paths, because any node may run a job. Make mount points unwritable, so an unmounted server is an error and not an
// empty server.
//
// # Instances
//
// An instance is the directory <path>/<instance>:
//
//	volumes/<name>/…   its data, moved with copy_volumes
//	instance.json      {"command": ["./run", "--fast"], "env": {"PORT": "8000"}}, if the instance has a command
//	output.log         the output of the command: up to 4 MiB, and the previous 4 MiB in output.log.1
//	.keeper.*          files of the agent, never moved
//	…                  other files are always moved
//
// The command runs in the instance's directory, as the daemon's user, in its own process group. Its environment
// contains the variables of instance.json, HUBRELAY_INSTANCE, and PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ
// and TMPDIR if the driver has them (`driver: {env: [PATH, LANG]}` copies the daemon's). The command has all rights of
// the daemon's user. Therefore the server's directory, the instance's directory and instance.json must belong to that
// user or to root, and no other user may write to them. Otherwise the driver rejects them.
//
// # Agents
//
// An agent is a process that keeps the command of one instance running. When the command ends, the agent restarts it
// after 0.1 to 45 s. To stop the command, the agent sends SIGTERM to its process group and, ten seconds later,
// SIGKILL. It does not stop processes outside of that group. A migration fails if they write to the source during
// the copy. If they write later, the driver keeps the source in <path>/.hubrelay-kept and logs a warning. What they
// write to a file that they keep open is lost when the source is removed. Agents keep running without the driver and
// the daemon. The driver finds them by their lock on .keeper.lock, and starts missing agents when it is configured.
// Killing an agent kills its command (Linux). The driver stops the agents of its relay whose instance or server is
// no longer in the inventory. `hubrelay inventory agents` lists and stops agents manually. Their command line is
// `hubrelay agent PATH INSTANCE LEASE STEADY RELAY`. Under systemd a restart of the daemon ends them too, unless the
// unit contains KillMode=process.
//
// # A migration
//
// The driver stops the source and renames its directory to <path>/.hubrelay/<instance>/<lease>/instance. It copies all
// files, flushes them to the disk, reads them again, and compares them with the checksums (xxHash64) of the source. The
// source must not have changed. This detects errors of the driver and changes by other writers. It detects disk errors
// only if the system reads from the disk and not from the page cache. Then the driver renames the copy to
// <path>/<instance> and starts the command. It removes the source after the command has run for one second.
//
// The copy preserves modes, owners, times, symbolic links (never followed), hard links within the instance, holes,
// extended attributes and FIFOs. It skips sockets, and the migration fails if the instance contains a device.
// Preserving owners requires root. A path below an instance can have up to 3,900 bytes. The driver does not move an
// instance that contains a mount (Linux), because the mounted data would be removed with the source.
//
// Without copy_volumes the instance starts with empty volumes of the same names. The driver keeps the source's
// directory as <path>/.hubrelay-kept/<instance>/<job>-<lease>, with its volumes. Only an operator removes it.
//
// If the migration fails before the command has run on the destination, the driver starts the source again and cleans
// the destination. The error of the job names the next step. An interrupted call continues from the state on the disks,
// and does not copy complete files again. An instance whose command has run on the destination is not moved back,
// because its new data is not on the source.
//
// # Two nodes at once
//
// Each server has one directory .hubrelay/<instance>/<lease> for every instance that was ever migrated from or to it.
// This is the work directory of the highest lease. Do not remove it. A higher lease claims it by renaming it. Each
// irreversible step is a rename from or into the work directory by its path, so it fails for an outdated process. Each
// lease copies into directories that it created itself, and adopts files by renaming them. So an outdated process never
// writes into the directories of its successor. An agent obeys only the work directory of the current lease.
//
// An NFS client may cache a path that another client has renamed. The driver lists the directory before each rename,
// which refreshes the cache. Mount with lookupcache=none to be sure. Locks must work (do not use nolock or local_lock).
//
// This package must not import the daemon, Redis or other drivers.
package directory
