package website

import (
	"cmp"
	"maps"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
)

// SiteLabel is a label of the Deployment, Service and pods of a Website, by which policies can
// select them: "apps.orrery.dev/website". Its value is the name of the Website, cut to 63
// characters.
const SiteLabel = "apps.orrery.dev/website"

// The site's files are in a volume that git-sync writes and nginx reads. git-sync keeps a link
// to the checked-out commit and replaces it in one step. The target of the link is relative, so
// the volume can be mounted anywhere. The volume is mounted at the parent directory of nginx's
// document root, html, and the link is named html. So nginx needs no configuration.
const (
	filesVolume = "files"
	filesPath   = "/git"
	filesLink   = "html"
	servePath   = "/usr/share/nginx"
)

// deployment returns the Deployment that a Website should have on the hub. Its pods have two
// containers: nginx, and git-sync, which fetches the files.
func deployment(w *appsv1alpha1.Website) *unstructured.Unstructured {
	replicas := int64(1)
	if w.Spec.Replicas != nil {
		replicas = int64(*w.Spec.Replicas)
	}
	o := object(w)
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	o.Object["spec"] = map[string]any{
		"replicas": replicas,
		"selector": map[string]any{"matchLabels": asAny(selector(w))},
		"template": map[string]any{
			"metadata": map[string]any{"labels": asAny(labels(w))},
			"spec": map[string]any{
				"automountServiceAccountToken": false,
				"enableServiceLinks":           false,
				"securityContext": map[string]any{
					"runAsNonRoot":   true,
					"fsGroup":        int64(gitSyncUser),
					"seccompProfile": map[string]any{"type": "RuntimeDefault"},
				},
				"containers": []any{nginx(w), gitSync(w)},
				"volumes": []any{
					map[string]any{"name": filesVolume, "emptyDir": map[string]any{}},
					map[string]any{"name": "nginx-tmp", "emptyDir": map[string]any{}},
					map[string]any{"name": "git-sync-tmp", "emptyDir": map[string]any{}},
				},
			},
		},
	}
	return o
}

// The images that a Website uses by default. The schema of Websites has the same values.
const (
	defaultNginx   = "docker.io/nginxinc/nginx-unprivileged:1.29-alpine"
	defaultGitSync = "registry.k8s.io/git-sync/git-sync:v4.5.0"
)

// The user IDs as which the images run.
const (
	nginxUser   = 101
	gitSyncUser = 65533
)

// nginx returns the container that serves the files, in the form of JSON.
func nginx(w *appsv1alpha1.Website) map[string]any {
	return map[string]any{
		"name":            "nginx",
		"image":           cmp.Or(w.Spec.Images.Nginx, defaultNginx),
		"ports":           []any{map[string]any{"name": "http", "containerPort": int64(8080)}},
		"readinessProbe":  map[string]any{"tcpSocket": map[string]any{"port": "http"}},
		"resources":       requests("10m", "16Mi"),
		"securityContext": restricted(nginxUser),
		"volumeMounts": []any{
			map[string]any{"name": filesVolume, "mountPath": servePath, "readOnly": true},
			map[string]any{"name": "nginx-tmp", "mountPath": "/tmp"},
		},
	}
}

// gitSync returns the container that fetches the git repository and its changes, in the form of
// JSON.
func gitSync(w *appsv1alpha1.Website) map[string]any {
	period := 30 * time.Second
	if w.Spec.Period != nil {
		period = w.Spec.Period.Duration
	}
	args := []any{"--repo=" + w.Spec.GitRepo}
	if w.Spec.Branch != "" {
		args = append(args, "--ref="+w.Spec.Branch)
	}
	args = append(args,
		"--root="+filesPath, "--link="+filesLink, "--period="+period.String(),
		"--max-failures=-1", // the site stays up while the repository is unreachable
		"--http-bind=:8081",
	)
	return map[string]any{
		"name":  "git-sync",
		"image": cmp.Or(w.Spec.Images.GitSync, defaultGitSync),
		"args":  args,
		"ports": []any{map[string]any{"name": "git-sync", "containerPort": int64(8081)}},
		// The container is ready after the first sync. The files do not matter: a site may have no index.
		"readinessProbe":  map[string]any{"httpGet": map[string]any{"path": "/", "port": "git-sync"}},
		"resources":       requests("10m", "32Mi"),
		"securityContext": restricted(gitSyncUser),
		"volumeMounts": []any{
			map[string]any{"name": filesVolume, "mountPath": filesPath},
			map[string]any{"name": "git-sync-tmp", "mountPath": "/tmp"},
		},
	}
}

// restricted returns a security context that the restricted Pod Security Standard allows, for a
// container that runs as the user ID.
func restricted(user int64) map[string]any {
	return map[string]any{
		"runAsUser":                user,
		"allowPrivilegeEscalation": false,
		"readOnlyRootFilesystem":   true,
		"capabilities":             map[string]any{"drop": []any{"ALL"}},
	}
}

// requests returns the resource requests of a container.
func requests(cpu, memory string) map[string]any {
	return map[string]any{"requests": map[string]any{"cpu": cpu, "memory": memory}}
}

// service returns the Service that a Website should have on the hub. It has the type NodePort.
func service(w *appsv1alpha1.Website) *unstructured.Unstructured {
	o := object(w)
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	o.Object["spec"] = map[string]any{
		"type":     string(corev1.ServiceTypeNodePort),
		"selector": asAny(selector(w)),
		"ports": []any{map[string]any{
			"name": "http", "port": int64(80), "protocol": string(corev1.ProtocolTCP), "targetPort": "http",
		}},
	}
	return o
}

// object returns an object with the metadata of a Website's Deployment and Service: namespace,
// name, labels, and the Website as the owner. The caller sets the kind and the spec.
func object(w *appsv1alpha1.Website) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetNamespace(w.Namespace)
	o.SetName(w.Spec.DeploymentName)
	o.SetLabels(labels(w))
	o.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(w, appsv1alpha1.GroupVersion.WithKind("Website")),
	})
	return o
}

// selector returns the labels by which the Deployment and the Service select the pods of a Website.
// They contain spec.deploymentName, which is immutable and short enough for a label.
func selector(w *appsv1alpha1.Website) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     "website",
		"app.kubernetes.io/instance": w.Spec.DeploymentName,
	}
}

// labels returns the labels of the Deployment, Service and pods of a Website: SiteLabel,
// app.kubernetes.io/managed-by, and the labels of selector.
func labels(w *appsv1alpha1.Website) map[string]string {
	all := map[string]string{
		"app.kubernetes.io/managed-by": FieldManager,
		SiteLabel:                      labelValue(w.Name),
	}
	maps.Copy(all, selector(w))
	return all
}

// labelValue returns a name as the value of a label: cut to 63 characters, without - and . at the
// cut end.
func labelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	return strings.TrimRight(name[:validation.LabelValueMaxLength], "-.")
}

// asAny converts the map to the form of JSON that unstructured objects require.
func asAny(m map[string]string) map[string]any {
	all := make(map[string]any, len(m))
	for key, value := range m {
		all[key] = value
	}
	return all
}
