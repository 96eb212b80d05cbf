;;;; The tracers of frames (base/log/tracer.lisp) tell of every HTTP/2 frame that a link reads or
;;;; writes, when its octets come from the transport or have gone to it. So the core does not know
;;;; of the tracers, and a frame that was written but never sent is not told.
;;;;
;;;; A frame that is read is told once it is whole, before the core takes it. A write may end within
;;;; a frame: how many octets of that are still to come is kept in a table beside the links, since
;;;; links that are not traced should not pay for it.

(in-package #:clgrpc.wire)

(defglobal **taps** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "A table from a link to how many octets of its output still belong to a frame that has been told;
or to a vector with the octets written of a frame's header, if only a part of that was.")

(defun tell-frame (link event plist)
  "Tell EVENT, with the frame of PLIST, to those tracers of frames that are on and want it."
  (flet ((tell (tracer)
           (apply #'log-event :trace event :tracer tracer
                  :role (http2:connection-role (link-http2 link)) :peer (link-peer link) plist)))
    (let ((frame (getf plist :frame)))
      (cond ((tracing-p :http) (tell :http))
            ((and (tracing-p :flowctl) (equal frame "WINDOW-UPDATE")) (tell :flowctl))
            ((and (tracing-p :http-keepalive) (equal frame "PING")) (tell :http-keepalive))))))

(defun tap-input (link octets start end)
  "If the first frame in OCTETS from START to END, which LINK has read, is whole, tell of it."
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
