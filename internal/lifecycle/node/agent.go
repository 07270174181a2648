package node

import (
	"os"
	"syscall"
)

// agentFile is the name of the file, in the directory of the agent's records, with the stored
// agentStamp.
const agentFile = "agent.json"

// agentStamp is the SHA-256 digest of the agent's program at AgentPath, with the device, inode,
// size and change time of that file. While these four are the same, the stored digest is valid. The
// agent then does not read the whole program.
type agentStamp struct {
	Digest  string           `json:"digest"`
	Device  uint64           `json:"device"`
	Inode   uint64           `json:"inode"`
	Size    int64            `json:"size"`
	Changed syscall.Timespec `json:"changed"`
}

// agentNow returns the stamp of the agent's program. It takes the digest from the stored stamp if
// the file is the same, else it reads the file. kept reports whether exactly this stamp is stored
// already. now is empty, and kept false, if the file cannot be read.
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

// stampAgent stores the stamp of the agent's program, unless it is stored already. It ignores
// errors: without a stored stamp, agentNow reads the program each time.
func (n *Node) stampAgent() {
	if now, kept := n.agentNow(); !kept && now.Digest != "" {
		_ = n.writeChecked(n.dir(agentFile), now)
	}
}
