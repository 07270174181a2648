export default {
  title: "Join a cluster",
}
