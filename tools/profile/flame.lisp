;;;; A flame graph as SVG: the stacks of all samples, called functions above their callers, as wide
;;;; as the time spent in them. Places across are shares of the width, so it fits any page; a name
;;;; that is too long for its frame is cut off. A click on a frame widens it to the whole width, a
;;;; click on the lowest frame shows all again. Without the script the graph still shows everything.

(in-package #:clgrpc.profile)

(defconstant +frame-height+ 17 "The height of a frame of the flame graph, in pixels.")

(defparameter *least-share* 1/1500 "The share of the width below which a frame is omitted.")

(defparameter *area-hues*
  '(("loop" . 210) ("os" . 200) ("http2" . 150) ("hpack" . 120) ("http1" . 100)
    ("protobuf" . 280) ("wire" . 180) ("server" . 45) ("client" . 60) ("rpc" . 75)
    ("method" . 85) ("serving" . 65) ("calling" . 70) ("user code" . 330) ("allocation" . 300)
    ("collector" . 0))
  "Hues of subsystems, in degrees; the kernel's are those of 20.")

(defun area-hue (area)
  "The hue of AREA, or nil for frames without an area."
  (cond ((null area) nil)
        ((uiop:string-prefix-p "kernel" area) 20)
        (t (or (cdr (assoc area *area-hues* :test #'string=)) 240))))

(defparameter *flame-style*
  ".flame { display: block; width: 100%; margin: 6px 0; }
.flame rect { stroke: var(--card); stroke-width: 1; cursor: pointer; }
.flame .f rect { fill: hsl(var(--h) 62% 76%); }
.flame .n rect { fill: var(--line); }
.flame text { font-size: 11px; fill: #14181d; pointer-events: none; }
.flame .n text { fill: var(--text); }
.flame svg:hover rect { stroke: var(--text); }
@media (prefers-color-scheme: dark) {
  .flame .f rect { fill: hsl(var(--h) 42% 34%); }
  .flame text { fill: #f2f5f8; }
}
"
  "The style of flame graphs.")

;; text of a page is escaped, so neither <, > nor & may be in it
(defparameter *flame-script*
  "for (const graph of document.querySelectorAll('.flame')) {
  const frames = Array.from(graph.querySelectorAll('svg'));
  const places = new Map(frames.map(function (f) {
    return [f, [parseFloat(f.getAttribute('x')), parseFloat(f.getAttribute('width'))]];
  }));
  graph.addEventListener('click', function (event) {
    const chosen = event.target.closest('svg.f, svg.n');
    if (!places.has(chosen)) return;
    const [left, width] = places.get(chosen);
    for (const f of frames) {
      const [x, w] = places.get(f);
      f.setAttribute('x', (x - left) / width * 100 + '%');
      f.setAttribute('width', w / width * 100 + '%');
    }
  });
}
"
  "The script of a click on a frame.")

(defun node-depth (node least)
  "The height, in frames, of the tree of NODE, JSON, counting only nodes of at least LEAST
nanoseconds."
  (1+ (reduce #'max (remove-if-not (lambda (child) (>= (member-of child "ns") least))
                                   (member-of node "children"))
              :key (lambda (child) (node-depth child least)) :initial-value 0)))

(defun percent-attribute (share)
  (format nil "~,3F%" (* 100 share)))

(defun stack-shares (root)
  "A hash table from the stacks in the tree ROOT, JSON, to their shares of the time. A stack is a
list of names, the innermost first. Shares of equal stacks are added up."
  (let ((shares (make-hash-table :test 'equal)) (whole (max 1 (member-of root "ns"))))
    (labels ((visit (node stack)
               (let ((stack (cons (member-of node "name") stack)))
                 (incf (gethash stack shares 0) (/ (member-of node "ns") whole))
                 (map nil (lambda (child) (visit child stack))
                      (member-of node "children")))))
      (visit root '()))
    shares))

(defparameter *least-change* 1/200
  "The change of a frame's share below which the frame has no colour.")

(defun change-hue (share before)
  "The hue of a frame that has SHARE of the time and had BEFORE: red if it has grown, blue if it has
shrunk; nil if it has not changed."
  (cond ((< (abs (- share before)) *least-change*) nil)
        ((< before share) 0)
        (t 215)))

(defun frame-markup (node share left top before)
  "The element of NODE, JSON, which is SHARE of the width, from LEFT, another share, at TOP pixels.
BEFORE is the node's share in another profile, or nil; if given, the colour shows the change."
  (let ((hue (if before (change-hue share before) (area-hue (member-of node "area"))))
        (name (member-of node "name")))
    `(:svg (:class ,(if hue "f" "n") :style ,(and hue (format nil "--h:~D" hue))
            :x ,(percent-attribute left) :y ,top
            :width ,(percent-attribute share) :height ,+frame-height+)
      (:rect (:width "100%" :height ,+frame-height+))
      ,(when (> share 1/100) `(:text (:x 4 :y 12) ,name))
      (:title () ,(format nil "~A~@[, ~A~]: ~A ms, ~A~@[; before ~A~]" name (member-of node "area")
                          (milliseconds (member-of node "ns")) (percent share)
                          (and before (percent before)))))))

(defun flame-graph (root label &key before)
  "The flame graph of the tree ROOT, JSON, as an element; LABEL describes it in words. With BEFORE,
the tree of another profile, colours show growth and shrinkage."
  (let* ((whole (member-of root "ns"))
         (shares (and before (stack-shares before)))
         (least (* whole *least-share*))
         (height (* +frame-height+ (node-depth root least)))
         (elements '()))
    (labels ((add (node left level stack)
               (let ((share (/ (member-of node "ns") whole))
                     (stack (cons (member-of node "name") stack)))
                 (push (frame-markup node share left (- height (* level +frame-height+))
                                     (and shares (gethash stack shares 0)))
                       elements)
                 (let ((at left))
                   (loop for child across (or (member-of node "children") #())
                         when (>= (member-of child "ns") least)
                           do (add child at (1+ level) stack)
                              (incf at (/ (member-of child "ns") whole)))))))
      (when (plusp whole) (add root 0 1 '())))
    `(:svg (:class "flame" :role "img" :aria-label ,label :height ,height)
      ,@(nreverse elements))))
