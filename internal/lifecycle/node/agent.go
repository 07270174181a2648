package node

import (
	"os"
	"syscall"
)

// agentFile is the name of the file with the agentStamp.
const agentFile = "agent.json"

// agentStamp is a digest of the agent, and which file it is of: one that is put in its place, or written to, is another. So
// whoever asks for the digest costs no look at all of the file.
type agentStamp struct {
	Digest  string           `json:"digest"`
	Device  uint64           `json:"device"`
	Inode   uint64           `json:"inode"`
	Size    int64            `json:"size"`
	Changed syscall.Timespec `json:"changed"`
}

// agentNow is the stamp of the agent that is there, empty if there is none that can be read, and whether it is kept.
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

// stampAgent keeps the digest of the agent. Where it cannot be kept, it is found again.
func (n *Node) stampAgent() {
	if now, kept := n.agentNow(); !kept && now.Digest != "" {
		_ = n.writeChecked(n.dir(agentFile), now)
	}
}
