// Package directory is the driver of migrations that comes with the daemon, as builtin:directory: a server is a folder, an
// instance a folder in it, and migrating one is stopping it, copying it with checksums, and starting it in the other place.
//
//	migration: {driver: {command: ["builtin:directory"]}, inventory_file: inventory.yaml}
//
// # Servers
//
// The inventory says of each server {path: /srv/a}: an absolute path of a folder that exists and may be written to, local or
// mounted. Two servers need folders apart. Every node that runs the daemon needs all of them under the same paths, since any
// node may carry out a job. Make mount points unwritable, so that an unmounted server is an error and not an empty one.
//
// # Instances
//
// An instance is the folder <path>/<instance>:
//
//	volumes/<name>/…   what it keeps; moved with copy_volumes
//	instance.json      {"command": ["./run", "--fast"], "env": {"PORT": "8000"}}, where there is something to run
//	output.log         what the command printed; 4 MiB, and as much again in output.log.1
//	.keeper.*          the keeper's, never moved
//	…                  anything else is moved always
//
// The command runs in the instance's folder, as the daemon's user, in a process group of its own. It sees the variables of
// instance.json, HUBRELAY_INSTANCE, and PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ and TMPDIR as far as the driver has
// them (`driver: {env: [PATH, LANG]}` passes the daemon's on). It can do what the daemon's user can. So the server's folder, the
// instance's folder and instance.json must belong to that user or to root, and nobody else may write to them. Otherwise the
// driver refuses them.
//
// # Keepers
//
// A keeper, a process of its own, keeps the command running: it starts it again when it ends, after 0.2 to 45 s, and stops it
// with SIGTERM and, ten seconds later, SIGKILL to its process group. What left that group is not stopped; a migration fails if
// it goes on writing. Keepers outlive the driver and the daemon, and are found again by the lock on .keeper.lock; where none
// runs, the driver starts one when it is configured. Killing a keeper kills the command (Linux). The driver stops the keepers of its
// relay whose instance or server the inventory does not name any more. `hubrelay inventory agents` lists them and stops them by
// hand; their command line is `hubrelay agent PATH INSTANCE LEASE STEADY RELAY`. Under systemd a restart of the daemon ends them too unless the unit says KillMode=process.
//
// # A migration
//
// The source stops, and its folder goes to <path>/.hubrelay/<instance>/<lease>/instance. Everything is copied, put on the disk, read
// again and compared with the checksums (xxHash64) of what was read at the source; the source must not have changed meanwhile. That finds
// our mistakes and other writers, and a disk that does not keep what it was given where the system reads from it again: what
// is still in the page cache is read from there. Then the copy takes its place, the command starts, and once it has run for a
// second the source is removed. Modes, owners, times, symbolic links (never followed), hard links within the instance, holes, extended
// attributes and FIFOs are kept, sockets are left out, and a device makes the migration fail. Keeping
// owners needs root. A path below an instance may have up to 3,900 bytes. An instance that something is mounted in is not
// moved (Linux): whoever else that is for, it would be emptied with the source.
//
// Without copy_volumes the instance starts with empty volumes of the same names, and the source's folder is kept as
// <path>/.hubrelay-kept/<instance>/<job>-<lease>, volumes included. Nothing removes it but you.
//
// Whatever goes wrong until the command has run at the destination, the source runs again and the destination is cleaned; the job's error
// says what to do. A call that is interrupted goes on from what is on the disks: complete files are not copied again. An
// instance whose command has run at the destination is not brought back, since what it wrote there is not at the source.
//
// # Two nodes at once
//
// Each server has one folder .hubrelay/<instance>/<lease> for every instance that was ever migrated from or to it, the work
// folder of the highest lease seen; leave it there. A higher lease claims it by renaming it. Each step that cannot be undone is a
// rename from or into the work folder by its path, so it fails for whoever was overtaken. Each lease copies into folders that it
// made itself and takes files over by renaming them, so that no late process writes into what another goes on with; and
// a keeper stops only where the work folder of the present lease says so.
//
// On NFS a client may remember a path that another has renamed. The driver lists the folder before each rename, which makes
// the client ask again; mount with lookupcache=none to be sure. Locks have to work (no nolock, no local_lock).
//
// The daemon, Redis and other drivers must not come in here.
package directory
