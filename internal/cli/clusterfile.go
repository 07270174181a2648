package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/config"
)

// fileFlag is the required flag -f: the path of a file that describes a cluster on hosts, in the
// format of Orrery or of KubeKey. "-" means standard input.
type fileFlag struct{ path string }

func (f *fileFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.path, "filename", "f", "", "file that describes the cluster, of Orrery or of KubeKey; - is standard input")
}

// read returns the cluster that the file describes; its name is valid and its spec.provision is not
// nil. It prints to s.err the fields of the file that are ignored, and the unset fields whose
// default differs from that of KubeKey. A file that asks for a join by agent is an error, because
// only a hub can do that.
func (f *fileFlag) read(s streams) (*clusterv1alpha1.Cluster, error) {
	content, dir, err := f.content(s.in)
	if err != nil {
		return nil, err
	}
	read, err := config.Parse(content, dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path, err)
	}
	for _, ignored := range read.Ignored {
		if err := say(s.err, "ignored: %s\n", ignored); err != nil {
			return nil, err
		}
	}
	for _, different := range read.Defaults {
		if err := say(s.err, "not set: %s\n", different); err != nil {
			return nil, err
		}
	}
	c := read.Cluster
	if c.Spec.Provision == nil {
		return nil, fmt.Errorf("read %s: spec.provision is missing, which says what cluster %s is built of; write a file with %q",
			f.path, c.Name, "orrery cluster config "+c.Name)
	}
	if c.Spec.Provision.Join == clusterv1alpha1.Pull {
		return nil, fmt.Errorf("read %s: spec.provision.join: only the hub joins what it has built: leave the field out here, and run %q once the cluster is there",
			f.path, "orrery cluster join "+c.Name+" --pull")
	}
	return c, checkName(c.Name)
}

// loginsFlag is the optional flag -f of commands for a built cluster: a file with the present
// logins of its hosts, if they have changed. Nothing else in the file is used.
type loginsFlag struct{ fileFlag }

func (f *loginsFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.path, "filename", "f", "", "file of the cluster with the present logins of its hosts, if these have changed since it was applied; nothing else of it is used")
}

// read returns the hosts in the file, with their logins; nil if -f is not set. It prints to s.err
// which fields of the file are ignored. It is an error if the file does not describe the named
// cluster.
func (f *loginsFlag) read(s streams, cluster string) ([]clusterv1alpha1.Host, error) {
	if f.path == "" {
		return nil, nil
	}
	c, err := f.fileFlag.read(s)
	if err != nil {
		return nil, err
	}
	if c.Name != cluster {
		return nil, fmt.Errorf("%s describes cluster %s: name the file of cluster %s", f.path, c.Name, cluster)
	}
	return c.Spec.Provision.Hosts, nil
}

// content returns the bytes of the file, and the directory at which relative paths in it begin. For
// standard input that is the working directory. Without -f the error is a usageError.
func (f *fileFlag) content(stdin io.Reader) (content []byte, dir string, err error) {
	switch f.path {
	case "":
		return nil, "", usageError{errors.New("-f is required: the file that describes the cluster; write one with \"orrery cluster config NAME\"")}
	case "-":
		if dir, err = os.Getwd(); err == nil {
			content, err = io.ReadAll(stdin)
		}
	default:
		if dir, err = filepath.Abs(filepath.Dir(f.path)); err == nil {
			content, err = os.ReadFile(f.path)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the cluster's file: %w", err)
	}
	return content, dir, nil
}
