export default {
  title: "原因",
}
