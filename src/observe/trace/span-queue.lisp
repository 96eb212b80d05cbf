;;;; Queues of finished spans, which wait for an exporter. Each loop has its own; threads
;;;; that run no loop share one. A queue has the form of a stack. Items are pushed by
;;;; compare-and-swap, and the stack is taken as a whole: only the exporter, now and then, contends
;;;; with the loop for it. A node has the number of nodes below it, so the bound needs no separate
;;;; count.

(in-package #:clgrpc.trace)

(defstruct (node (:constructor make-node (span next depth)) (:copier nil))
  "A span that waits."
  (span nil :type span :read-only t)    ; the span that waits
  (next nil :type (or null node))       ; the node that was pushed before this one
  (depth 0 :type index :read-only t))   ; how many spans there are, itself included

(defstruct (queue (:copier nil))
  "The finished spans of one loop, and that loop's other data of tracing."
  (ids nil :type ids :read-only t)      ; the source of its ids
  ;; the loop whose spans wait here; nil for threads that run none
  (loop nil :type (or null loop:event-loop) :read-only t)
  (clock nil :type function :read-only t) ; gives the time since 1970 in nanoseconds
  ;; the metadata of a server's call without a trace context; a peer that repeats its headers has
  ;; them again, and they need not be searched
  (bare-fields #() :type (or null simple-vector))
  (newest nil :type (or null node))     ; the node that was pushed last; atomic
  (dropped 0 :type sb-ext:word))        ; how many spans found the queue full; atomic

(declaim (sb-ext:freeze-type node queue))

(define-printer (node node)
  "~D of ~A" (node-depth node) (node-span node))

(define-printer (queue queue)
  "~D spans, ~D dropped" (queue-length queue) (queue-dropped queue))

(defun queue-length (queue)
  "How many spans wait in QUEUE."
  (let ((newest (queue-newest queue)))
    (if newest (node-depth newest) 0)))

(defun push-span (queue span limit)
  "Put SPAN, which has ended, into QUEUE. Return the number of spans in the queue; nil if the queue
already had LIMIT spans, so that SPAN was dropped."
  (let ((node nil))
    (loop
      (let* ((old (queue-newest queue))
             (depth (if old (1+ (node-depth old)) 1)))
        (when (> depth limit)
          (sb-ext:atomic-incf (queue-dropped queue))
          (return nil))
        (setf node (make-node span old depth))
        (when (eq old (sb-ext:compare-and-swap (queue-newest queue) old node))
          (return depth))))))

(defun take-spans (queue)
  "Remove and return the spans that wait in QUEUE, the oldest first."
  (let ((newest (loop for old = (queue-newest queue)
                      until (eq old (sb-ext:compare-and-swap (queue-newest queue) old nil))
                      finally (return old)))
        (spans '()))
    (loop for node = newest then (node-next node)
          while node do (push (node-span node) spans))
    spans))
