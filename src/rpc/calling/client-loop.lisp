;;;; The loops of all channels of a world. Callers drive client loops (loop/threads/driving.lisp),
;;;; each caller the loop of its own call. Threads of one reserve run these loops when no caller
;;;; does, and run work that callers leave, such as completions.
;;;;
;;;; A caller may drive a loop only while its call is the only one on that loop. So each channel has
;;;; a loop of its own as far as the option MAX-CLIENT-LOOPS allows. A new channel gets a new loop
;;;; if each loop has a channel already; beyond the limit it gets the loop with the fewest channels.
;;;; A channel never changes its loop. Callers that block on channels with different loops do not
;;;; wake one another. Calls for which no thread waits use as many processors as there are loops.
;;;; Channels that share connections share one loop, whatever their number.
;;;;
;;;; A loop ends with its last channel, the reserve with the last loop: an image without channels
;;;; has no client thread.

(in-package #:clgrpc.calling)

(defconstant +least-client-loops+ 4
  "The default of MAX-CLIENT-LOOPS on a machine with few processors. It exceeds 1 because, even on
one processor, a caller that drives a loop which no other channel uses saves two thread switches per
call.")

(defconstant +most-client-loops+ 16
  "The default of MAX-CLIENT-LOOPS on a machine with many processors. An idle loop costs 0.1 MB, and
a sleeping thread that makes each garbage collection 30 µs longer.")

(defstruct (group (:constructor make-group (key pool)) (:copier nil))
  "The channels with one KEY, which are all on one loop."
  (key '() :type list :read-only t)     ; a key that is EQUAL for these channels
  (pool nil :read-only t)               ; the data that these channels share
  (channels 0 :type fixnum))            ; the number of these channels

(define-printer (group group)
  "~D channel~:P" (group-channels group))

(defstruct (client-loop (:constructor make-client-loop (loop reserve)) (:copier nil))
  "A loop that channels use."
  (loop nil :type loop:event-loop :read-only t) ; the loop itself, which runs
  (reserve nil :type loop:reserve :read-only t) ; shared by all client loops of a world
  (channels 0 :type fixnum)             ; the number of channels on LOOP
  (timers 0 :type fixnum)               ; channels within the image with timers on LOOP
  (groups '() :type list))              ; groups of channels on LOOP that share a pool

(define-printer (client-loop client-loop)
  "~A, ~D channels" (client-loop-loop client-loop) (client-loop-channels client-loop))

(defun client-loops (&optional (world loop:*world*))
  "Every CLIENT-LOOP of WORLD, the newest first."
  (loop:world-client-loops world))

(defglobal **client-loops-lock** (sb-thread:make-mutex :name "clgrpc client loops"))

(defun client-loop-limit (options)
  "The maximum number of client loops that OPTIONS, a channel's, allow."
  (let ((limit (options-max-client-loops options)))
    (if (zerop limit)
        (max +least-client-loops+
             (if (loop:simulated-p) 0 (min +most-client-loops+ (os:processor-count))))
        limit)))

(defun add-client-loop ()
  "Return a new client loop, which runs. The caller must hold the lock of all client loops."
  (let* ((reserve (if (client-loops)
                      (client-loop-reserve (first (client-loops)))
                      (loop:make-reserve)))
         (event-loop (loop:make-event-loop :name "clgrpc client" :reserve reserve
                                           :caller-driven t)))
    (loop:launch-event-loop event-loop)
    (first (push (make-client-loop event-loop reserve) (loop:world-client-loops loop:*world*)))))

(defun least-used-loop ()
  "Return the client loop that has the fewest channels; nil if no client loop exists. The caller
must hold the lock of all client loops."
  (first (sort (copy-list (client-loops)) #'< :key #'client-loop-channels)))

(defun choose-client-loop (options)
  "Return the client loop for a new channel that has OPTIONS and may use any loop. The caller must
hold the lock of all client loops."
  (let ((least (least-used-loop)))
    (if (or (null least)
            (and (plusp (client-loop-channels least))
                 (< (length (client-loops)) (client-loop-limit options))))
        (add-client-loop)
        least)))

(defun find-group (client-loop pool-key)
  "Return the group of the channels with POOL-KEY on CLIENT-LOOP; nil if it has no such channel. The
caller must hold the lock of all client loops."
  (find pool-key (client-loop-groups client-loop) :key #'group-key :test #'equal))

(defun join-group (client-loop pool-key make-pool)
  "Count one more channel with POOL-KEY on CLIENT-LOOP and return the pool that its group shares.
The caller must hold the lock of all client loops."
  (let ((group (or (find-group client-loop pool-key)
                   (first (push (make-group pool-key (funcall (the function make-pool) pool-key))
                                (client-loop-groups client-loop))))))
    (incf (group-channels group))
    (group-pool group)))

(defun acquire-client-loop (options &optional pool-key make-pool)
  "Return the event loop that a new channel with OPTIONS uses until RELEASE-CLIENT-LOOP. POOL-KEY, a
list, is for a channel that shares connections: channels with EQUAL keys have the same loop. The
second value is the pool that such channels share, which MAKE-POOL has made from the POOL-KEY of the
first channel. If OPTIONS is :TIMERS, the loop is for the timers of a channel within the image."
  (read-environment)
  (sb-thread:with-mutex (**client-loops-lock**)
    (if (eq :timers options)
        (let ((client-loop (or (least-used-loop) (add-client-loop))))
          (incf (client-loop-timers client-loop))
          (client-loop-loop client-loop))
        (let ((client-loop (or (and pool-key
                                    (find-if (lambda (client-loop)
                                               (find-group client-loop pool-key))
                                             (client-loops)))
                               (choose-client-loop options))))
          (incf (client-loop-channels client-loop))
          (values (client-loop-loop client-loop)
                  (and pool-key (join-group client-loop pool-key make-pool)))))))

(defun leave-client-loop (client-loop pool-key)
  "Note that one use of CLIENT-LOOP has ended, as RELEASE-CLIENT-LOOP does. The caller must hold the
lock of all client loops."
  (if (eq :timers pool-key)
      (decf (client-loop-timers client-loop))
      (let ((group (and pool-key (find-group client-loop pool-key))))
        (decf (client-loop-channels client-loop))
        (when (and group (zerop (decf (group-channels group))))
          (setf (client-loop-groups client-loop)
                (remove group (client-loop-groups client-loop)))))))

(defun release-client-loop (event-loop &optional pool-key)
  "Undo the call of ACQUIRE-CLIENT-LOOP, with POOL-KEY or with :TIMERS, that has returned
EVENT-LOOP. End the loop if it has no users left, and the reserve if this was the last loop. Do not
call this on the loop."
  (let ((world (loop:event-loop-world event-loop)))
    (multiple-value-bind (unused reserve)
        (sb-thread:with-mutex (**client-loops-lock**)
          (let ((client-loop (find event-loop (client-loops world) :key #'client-loop-loop)))
            (leave-client-loop client-loop pool-key)
            (when (and (zerop (client-loop-channels client-loop))
                       (zerop (client-loop-timers client-loop)))
              (setf (loop:world-client-loops world) (remove client-loop (client-loops world)))
              (values t (and (null (client-loops world)) (client-loop-reserve client-loop))))))
      (when unused
        (loop:stop-event-loop event-loop)
        (loop:join-event-loop event-loop)
        (when reserve (loop:close-reserve reserve 1))))))

(defun client-reserve (event-loop)
  "The reserve of the client loops in the world of EVENT-LOOP, a present or former client loop; nil
once all client loops have ended. In a simulated world loops have no reserve of their own."
  (let ((client-loop (first (client-loops (loop:event-loop-world event-loop)))))
    (and client-loop (client-loop-reserve client-loop))))

;;; Driving

(defun drive-for (loop call ready-p)
  "Drive LOOP until (funcall READY-P CALL) is true or CALL has ended. Return true in both cases, or
false if this thread does not drive LOOP. A thread inside a handler never drives, since the code
that it would run might wait for that handler."
  (declare (type function ready-p))
  (flet ((done-p (call) (or (call-status call) (funcall ready-p call))))
    (declare (dynamic-extent #'done-p))
    (and (null *call*)
         (loop:drive loop #'done-p call)
         (done-p call))))
