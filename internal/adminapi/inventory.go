package adminapi

import "net/http"

// Inventory is the inventory without the settings of the servers, which may contain secrets.
type Inventory struct {
	// Version increases with each change.
	Version    int64       `json:"version"`
	Servers    []Server    `json:"servers"`
	Containers []Container `json:"containers"`
	// DriverError is the reason why the driver of this node cannot work. Jobs wait until it can.
	DriverError string `json:"driver_error,omitempty"`
}

// Server is a server with the IDs of its instances.
type Server struct {
	ID        string   `json:"id"`
	Cluster   string   `json:"cluster"`
	Instances []string `json:"instances"`
}

// Container is a container with its instances.
type Container struct {
	ID            string     `json:"id"`
	HubID         string     `json:"hub_id"`
	AccountID     string     `json:"account_id,omitempty"`
	EnvironmentID string     `json:"environment_id,omitempty"`
	Stateful      bool       `json:"stateful"`
	Instances     []Instance `json:"instances"`
}

// Instance is an instance of a container.
type Instance struct {
	ID       string `json:"id"`
	ServerID string `json:"server_id"`
	// MovedFrom is the server in the file, if a job has moved the instance to another one.
	MovedFrom string `json:"moved_from,omitempty"`
	// JobID is the job that is moving the instance.
	JobID string `json:"job_id,omitempty"`
}

// InventoryChanges is the result of [ImportInventory].
type InventoryChanges struct {
	Changed    bool        `json:"changed"`
	Servers    ChangeCount `json:"servers"`
	Containers ChangeCount `json:"containers"`
	Instances  ChangeCount `json:"instances"`
	// MovesCleared is the number of recorded moves that the file made obsolete.
	MovesCleared int `json:"moves_cleared"`
}

// ChangeCount counts the changes of an import.
type ChangeCount struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// InventoryFile is an inventory in YAML or JSON, as in configs/inventory.yaml. It is sent unchanged.
type InventoryFile []byte

// ListInventory lists the servers and containers.
func ListInventory() Operation[Empty, Inventory] {
	return viewerOperation[Empty, Inventory]("inventory.list", "/api/inventory", "List the servers and containers")
}

// ImportInventory replaces the containers and instances of all nodes with the ones in a file.
func ImportInventory() Operation[InventoryFile, InventoryChanges] {
	return newOperation[InventoryFile, InventoryChanges]("inventory.import", http.MethodPut, "/api/inventory", RoleAdmin,
		"Replace the containers and instances")
}
