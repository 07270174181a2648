export default {
  title: "分发",
}
