;;;; The loop that all channels of an image share, which callers drive by turns, and the reserve
;;;; threads that run it when they do not, and completions. Both
;;;; start with the first channel that needs them and end with the last channel that is closed, so
;;;; that an image without channels has no thread of ours.

(in-package #:clgrpc.client)

(defstruct (runtime (:copier nil))
  "USERS counts the channels."
  (loop nil :type loop:event-loop)
  (reserve nil :type loop:reserve)
  (users 0 :type fixnum))

(defglobal **runtime** nil)
(defglobal **runtime-lock** (sb-thread:make-mutex :name "clgrpc client runtime"))

(defun acquire-runtime ()
  "Return the running RUNTIME, with one user more."
  (read-environment)
  (sb-thread:with-mutex (**runtime-lock**)
    (unless **runtime**
      (let* ((reserve (loop:make-reserve))
             (event-loop (loop:make-event-loop :name "clgrpc client" :reserve reserve :attended t)))
        (loop:launch-event-loop event-loop)
        (setf **runtime** (make-runtime :loop event-loop :reserve reserve))))
    (incf (runtime-users **runtime**))
    **runtime**))

(defun release-runtime (runtime)
  "Give up one use of RUNTIME; with the last its threads end. Not on its loop."
  (let ((last (sb-thread:with-mutex (**runtime-lock**)
                (when (zerop (decf (runtime-users runtime)))
                  (setf **runtime** nil)
                  t))))
    (when last
      (loop:stop-event-loop (runtime-loop runtime))
      (loop:join-event-loop (runtime-loop runtime))
      (loop:close-reserve (runtime-reserve runtime) 1))))
