;;;; The tracers of frames (see clgrpc.base's trace.lisp): every HTTP/2 frame that a link reads or
;;;; writes, told when its octets come from the transport or have gone to it. So the core does not
;;;; know of them, and what was written but never sent is not told.
;;;;
;;;; What is read is told frame by frame, each before the core takes it, once it is whole. What is
;;;; written may end within a frame: how much of that is to come is kept, beside the link, since
;;;; links that nobody traces should not pay for it.

(in-package #:clgrpc.wire)

(defglobal **taps** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "For each link the octets of its output that still belong to a frame that has been told; a vector,
if only a part of a frame's header has been written, with that.")

(defun tell-frame (link event plist)
  "Have the tracers that are on and meant for the frame of PLIST tell of EVENT."
  (flet ((tell (tracer)
           (apply #'log-event :trace event :tracer tracer
                  :role (http2:connection-role (link-http2 link)) :peer (link-peer link) plist)))
    (let ((frame (getf plist :frame)))
      (cond ((tracing-p :http) (tell :http))
            ((and (tracing-p :flowctl) (equal frame "WINDOW-UPDATE")) (tell :flowctl))
            ((and (tracing-p :http-keepalive) (equal frame "PING")) (tell :http-keepalive))))))

(defun tap-input (link octets start end)
  "Tell of the first frame in OCTETS from START to END, which LINK has read, if it is whole."
  (let ((at (http2:skip-preface (link-http2 link) octets start end)))
    (multiple-value-bind (plist length) (http2:describe-frame octets at end)
      (when (and plist (<= (+ at length) end))
        (tell-frame link :frame-received plist)))))

(defun tap-output (link octets start end)
  "Tell of the frames in OCTETS from START to END, which LINK has written, behind what it wrote
before."
  (let ((left (or (shiftf (gethash link **taps**) 0)
                  ;; a client begins with its preface
                  (- (http2:skip-preface nil octets start end) start))))
    (when (vectorp left)
      (setf octets (concatenate 'octets left (subseq octets start end))
            start 0
            end (length octets)
            left 0))
    (let ((at (+ start left)))
      (loop while (< at end)
            do (multiple-value-bind (plist length) (http2:describe-frame octets at end)
                 (unless plist
                   (setf (gethash link **taps**) (subseq octets at end))
                   (return))
                 (tell-frame link :frame-sent plist)
                 (incf at length))
            finally (setf (gethash link **taps**) (- at end))))))
