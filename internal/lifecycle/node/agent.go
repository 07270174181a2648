package node

import (
	"os"
	"syscall"
)

// agentFile is the name of the file with the agentStamp.
const agentFile = "agent.json"

// agentStamp is the digest of the agent's file, with the file's identity. A replaced or changed
// file has another identity. The digest is therefore known without reading the whole file each
// time.
type agentStamp struct {
	Digest  string           `json:"digest"`
	Device  uint64           `json:"device"`
	Inode   uint64           `json:"inode"`
	Size    int64            `json:"size"`
	Changed syscall.Timespec `json:"changed"`
}

// agentNow returns the stamp of the agent's file, empty if the file cannot be read. kept reports
// whether this stamp is stored already.
func (n *Node) agentNow() (now agentStamp, kept bool) {
	info, err := os.Stat(n.path(AgentPath))
	if err != nil {
		return agentStamp{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return agentStamp{}, false
	}
	now = agentStamp{Device: stat.Dev, Inode: stat.Ino, Size: stat.Size, Changed: stat.Ctim}
	var last agentStamp
	if readChecked(n.dir(agentFile), &last) == nil {
		now.Digest = last.Digest
		if now == last {
			return now, true
		}
	}
	if now.Digest, err = fileDigest(n.path(AgentPath)); err != nil {
		return agentStamp{}, false
	}
	return now, false
}

// stampAgent stores the stamp of the agent. It ignores errors: agentNow then computes the digest
// again.
func (n *Node) stampAgent() {
	if now, kept := n.agentNow(); !kept && now.Digest != "" {
		_ = n.writeChecked(n.dir(agentFile), now)
	}
}
