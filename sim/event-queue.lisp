;;;; Plans for given times: a binary heap, sorted by time and, for equal times, by the order of
;;;; addition.

(in-package #:clgrpc.sim)

(defstruct (plan (:constructor make-plan (due number function argument)) (:copier nil))
  "A plan to call FUNCTION with ARGUMENT at DUE."
  (due 0 :type nanoseconds :read-only t) ; when the function is called
  (number 0 :type index :read-only t)   ; how many plans were added before
  (function nil :type function :read-only t) ; the function that is called
  (argument nil :read-only t))          ; the argument with which FUNCTION is called

(defstruct (event-queue (:copier nil))
  "The plans of a simulation."
  (plans (make-array 64 :initial-element 0) :type simple-vector) ; a heap, the earliest first
  (count 0 :type index)                 ; how many plans are in the queue
  (added 0 :type index))                ; how many plans were added in all

(declaim (sb-ext:freeze-type plan event-queue))

(define-printer (plan plan)
  "at ~,6F s" (ns-seconds (plan-due plan)))

(define-printer (event-queue event-queue)
  "~D plans" (event-queue-count event-queue))

(define-hot (plan-before-p :inline t) ((a plan) (b plan)) boolean
  (or (< (plan-due a) (plan-due b))
      (and (= (plan-due a) (plan-due b))
           (< (plan-number a) (plan-number b)))))

(define-hot add-plan ((event-queue event-queue) (due nanoseconds) (function function) (argument t))
            null
  (let ((plan (make-plan due (event-queue-added event-queue) function argument))
        (at (event-queue-count event-queue)))
    (declare (type index at))
    (incf (event-queue-added event-queue))
    (when (= at (length (event-queue-plans event-queue)))
      (setf (event-queue-plans event-queue)
            (replace (make-array (* 2 at) :initial-element 0) (event-queue-plans event-queue))))
    (setf (event-queue-count event-queue) (1+ at))
    (let ((plans (event-queue-plans event-queue)))
      (loop while (plusp at)
            do (let* ((up (ash (1- at) -1))
                      (parent (svref plans up)))
                 (unless (plan-before-p plan parent) (return))
                 (setf (svref plans at) parent
                       at up)))
      (setf (svref plans at) plan)))
  nil)

(define-hot next-plan-ns ((event-queue event-queue)) (or null nanoseconds)
  "The time at which the first plan is due, or NIL if EVENT-QUEUE is empty."
  (if (zerop (event-queue-count event-queue))
      nil
      (plan-due (svref (event-queue-plans event-queue) 0))))

(define-hot take-plan ((event-queue event-queue)) plan
  "Remove the first plan from EVENT-QUEUE, which has at least one, and return it."
  (let* ((plans (event-queue-plans event-queue))
         (first (svref plans 0))
         (end (1- (event-queue-count event-queue)))
         (last (svref plans end))
         (at 0))
    (declare (type index end at))
    (setf (event-queue-count event-queue) end
          (svref plans end) 0)
    (when (plusp end)
      (loop
        (let ((child (1+ (* 2 at))))
          (declare (type index child))
          (unless (< child end) (return))
          (when (and (< (1+ child) end)
                     (plan-before-p (svref plans (1+ child)) (svref plans child)))
            (incf child))
          (unless (plan-before-p (svref plans child) last) (return))
          (setf (svref plans at) (svref plans child)
                at child)))
      (setf (svref plans at) last))
    first))
