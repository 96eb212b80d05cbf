;;;; The tracers of frames (base/log/tracer.lisp) report every HTTP/2 frame that a link reads or
;;;; writes, when its octets were received from the transport or were sent to it. So the core does
;;;; not know the tracers, and a frame that was written but never sent is not reported.
;;;;
;;;; A frame that is read is reported once it is whole, before the core gets it. A write may end
;;;; within a frame. A table outside the links has the number of octets of such a frame that are
;;;; still to be written, so that links that are not traced have no cost.

(in-package #:clgrpc.wire)

(defglobal **taps** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "A table from a link to the number of octets of its output that still belong to a reported frame.
If only a part of a frame's header was written, the value is a vector with its octets.")

(defun tell-frame (link event plist)
  "Report EVENT, with the frame in PLIST, to a tracer of frames that is on and covers EVENT."
  (flet ((tell (tracer)
           (apply #'log-event :trace event :tracer tracer
                  :role (http2:connection-role (link-http2 link)) :peer (link-peer link) plist)))
    (let ((frame (getf plist :frame)))
      (cond ((tracing-p :http) (tell :http))
            ((and (tracing-p :flowctl) (equal frame "WINDOW-UPDATE")) (tell :flowctl))
            ((and (tracing-p :http-keepalive) (equal frame "PING")) (tell :http-keepalive))))))

(defun tap-input (link octets start end)
  "Report the first frame in OCTETS from START to END, which LINK has read, if the frame is
complete."
  (let ((at (http2:skip-preface (link-http2 link) octets start end)))
    (multiple-value-bind (plist length) (http2:describe-frame octets at end)
      (when (and plist (<= (+ at length) end))
        (tell-frame link :frame-received plist)))))

(defun tap-output (link octets start end)
  "Report the frames in OCTETS from START to END, which LINK has written next."
  (let ((left (or (shiftf (gethash link **taps**) 0)
                  ;; a client's output begins with its preface
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
