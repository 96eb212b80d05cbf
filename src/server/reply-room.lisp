;;;; Room for long answers, before their handlers begin. If a method has recently given long
;;;; answers, another long answer is expected: the heap promises room for the message and for its
;;;; octets (base/memory/heap.lisp) before the handler begins. A call that gets no promise waits on
;;;; its loop, without a thread, after the calls that came before it. After the time of the option
;;;; room-wait-seconds it ends with :resource-exhausted. One waiting call, the PROBE, begins without
;;;; a promise, since its answer may be short after all.
;;;;
;;;; The probe, and a handler whose method gives a long answer for the first time, wait for room
;;;; later, when they encode (rpc/room.lisp).

(in-package #:clgrpc.server)

(defconstant +room-look-ns+ 4000000
  "The interval, in nanoseconds, at which a loop checks for room for the first of the calls that
wait.")

(defstruct (room-waiter (:include ring) (:constructor make-room-waiter (call resume due-ns))
                        (:copier nil))
  "The place of a call among the calls of its loop that wait for room."
  (call nil :type server-call :read-only t) ; the call that waits
  (resume nil :type function :read-only t) ; the function that is called with CALL when there may be
                                           ; room
  (due-ns 0 :type nanoseconds :read-only t)) ; the time when the wait of CALL ends

(declaim (sb-ext:freeze-type room-waiter))

(defun await-room (call resume)
  "Call RESUME with CALL as soon as there may be room for CALL's answer. On the loop."
  (let* ((server-loop (server-call-endpoint call))
         (loop (wire-call-loop call))
         (now (loop:event-loop-now loop))
         (due (+ now (seconds-ns (options-room-wait-seconds (wire:wire-call-options call))))))
    (unless (call-status call)
      (let ((place (isolate-ring (make-room-waiter call resume due))))
        (setf (deferred-start-place (ensure-deferred-start call)) place)
        (enter-ring place (server-loop-room-waiters server-loop)))
      (unless (server-loop-room-timer server-loop)
        (setf (server-loop-room-timer server-loop)
              (loop:make-lasting-timer loop #'look-for-room server-loop)))
      (unless (timer-pending-p (server-loop-room-timer server-loop))
        (loop:start-timer loop (server-loop-room-timer server-loop) (+ now +room-look-ns+))
        (have-collected server-loop)))))

(defun stop-awaiting-room (place)
  "Remove the call of PLACE from the waiting calls."
  (quit-ring place)
  (setf (deferred-start-place (server-call-deferred-start (room-waiter-call place))) nil))

(defun have-collected (server-loop)
  "Collect garbage on a reserve thread, for the calls of SERVER-LOOP that wait."
  (loop:run-on-reserve (server-reserve (server-loop-server server-loop)) #'collect-for-room
                       :if-busy :exceed))

(defun probe-p (server-loop call)
  "Make CALL the probe of SERVER-LOOP and return true, unless another call is the probe and runs."
  (when (or (null (server-loop-probe server-loop)) (call-status (server-loop-probe server-loop)))
    (setf (server-loop-probe server-loop) call)
    t))

(defun look-for-room (server-loop)
  "Begin the waiting calls of SERVER-LOOP for which the heap has room now, and end those that have
waited too long. On the loop."
  (let* ((loop (server-loop-loop server-loop))
         (now (loop:event-loop-now loop))
         (promised '()))
    (loop for place = (ring-first (server-loop-room-waiters server-loop))
          for call = (and place (room-waiter-call place))
          for octets = (and call (* 2 (route-long-octets (server-call-route call))))
          while call
          do (cond ((< (room-waiter-due-ns place) now)
                    (stop-awaiting-room place)
                    (rpc:abort-as call :no-room-for-answer))
                   ((promise-octets octets)
                    (push octets promised) ; so no two calls get the same room
                    (stop-awaiting-room place)
                    (funcall (room-waiter-resume place) call))
                   ((probe-p server-loop call)
                    (stop-awaiting-room place)
                    (funcall (room-waiter-resume place) call))
                   (t (have-collected server-loop)
                      (return))))
    ;; each call gets a promise of its own when it runs
    (mapc #'settle-octets promised)
    (when (ring-first (server-loop-room-waiters server-loop))
      (loop:start-timer loop (server-loop-room-timer server-loop) (+ now +room-look-ns+)))
    (when (and (null (ring-first (server-loop-room-waiters server-loop)))
               (server-loop-probe server-loop) (call-status (server-loop-probe server-loop)))
      (setf (server-loop-probe server-loop) nil))))

(defun server-note-long-message (call octets)
  "The operation NOTE-LONG-MESSAGE."
  (note-answer (server-call-route call) octets))

;;; Calls that wait until the answers before them have been sent, see HOLD-UP

(define-hot look-at-held-up ((link server-link)) null
  "If LINK has delayed calls, check whether they may begin: output was sent, or will never be sent.
On the loop."
  (let ((queue (server-link-held-up link)))
    (when (and queue (fifo-items queue))
      (wire:link-event (server-link-owner link) link :output-left))
    nil))
