;;;; A loop, its clock and its connections, all in memory. An END is the peer's end of a connection:
;;;; what it says the loop reads, what the loop writes it keeps.

(in-package #:clgrpc.tests.world)

(defstruct (end (:copier nil))
  "The peer's end of a connection."
  (octets (make-octets 0) :type octets) ; what it has said,
  (start 0 :type index)                 ; of which the loop has not read what is from here on
  (said (make-buffer) :type buffer)     ; what the loop has written and nobody has looked at
  (ended nil :type boolean)             ; it says no more
  (full nil :type boolean)              ; it takes nothing that the loop writes
  (portion nil)                         ; how many octets of a write it takes; nil is all
  (shut nil :type boolean)              ; the loop says no more
  (closed nil :type boolean)            ; the loop has closed the connection
  (byte-channel nil)                    ; of the loop's end
  (descriptor 0 :type fixnum)           ; by which the poller knows the loop's end,
  (token 0)                             ; and what it is to report, 0 before it watches it
  (news 0 :type (unsigned-byte 32)))    ; what it is to report next

(defstruct (world (:copier nil))
  "A loop that the thread of a test runs."
  (loop nil)
  (clock nil :type (or null function))  ; the time; nil for the hand-driven NOW
  (now 1000000000 :type (unsigned-byte 62)) ; nanoseconds
  (ends '() :type list)                 ; of all connections, newest first
  (errors '() :type list))              ; logged, but those of handlers

(defun end-of (world descriptor)
  (find descriptor (world-ends world) :key #'end-descriptor))

(defun read-end (byte-channel octets start end)
  (let* ((peer (loop:byte-channel-state byte-channel))
         (count (min (- end start) (- (length (end-octets peer)) (end-start peer)))))
    (cond ((plusp count)
           (replace octets (end-octets peer) :start1 start :start2 (end-start peer)
                                             :end1 (+ start count))
           (incf (end-start peer) count)
           count)
          ((end-ended peer) 0)
          (t loop:+wants-read+))))

(defun write-end (byte-channel octets start end)
  (let ((peer (loop:byte-channel-state byte-channel)))
    (cond ((end-full peer) loop:+wants-write+)
          (t (let ((count (min (- end start) (or (end-portion peer) (- end start)))))
               (append-octets (end-said peer) octets :start start :end (+ start count))
               count)))))

(defparameter *kind*
  (loop:make-byte-channel-kind
   :name "memory" :read #'read-end :write #'write-end
   :shutdown (lambda (byte-channel) (setf (end-shut (loop:byte-channel-state byte-channel)) t))
   :close (lambda (byte-channel)
            (let ((end (loop:byte-channel-state byte-channel)))
              (setf (end-shut end) t
                    (end-closed end) t)))))

(defun report-news (world poller)
  "Tell POLLER's loop of what has changed at the ends of WORLD; return of how many."
  (let ((count 0))
    (dolist (end (world-ends world) count)
      (unless (or (zerop (end-news end)) (eql 0 (end-token end)))
        (setf (aref (loop:poller-tokens poller) count) (end-token end)
              (aref (loop:poller-flags poller) count) (shiftf (end-news end) 0))
        (incf count)))))

(defun memory-poller (world)
  (flet ((watch (descriptor token)
           (let ((end (end-of world descriptor)))
             (when end (setf (end-token end) token))
             0)))
    (loop:make-poller
     :add (fn (_poller descriptor token) (watch descriptor token))
     :remove (fn (_poller descriptor) (watch descriptor 0))
     :wait (fn (poller _timeout-ns) (report-news world poller))
     :wake #'identity
     :close #'identity)))

(defun start-world (world &rest arguments)
  "Give WORLD its loop, made with ARGUMENTS of MAKE-EVENT-LOOP; return WORLD."
  (setf (world-loop world)
        (apply #'loop:make-event-loop
               :name "memory" :poller (memory-poller world)
               :clock (or (world-clock world) (lambda () (world-now world)))
               arguments))
  world)

(defun busy-p (world)
  "True if the loop of WORLD has something to do at once."
  (let ((loop (world-loop world)))
    (or (some (lambda (end) (plusp (end-news end))) (world-ends world))
        (plusp (loop::event-loop-ready-count loop))
        (plusp (loop::event-loop-dirty-count loop))
        (plusp (loop::event-loop-ring-count loop))
        (not (loop::inbox-empty-p (loop::event-loop-inbox loop))))))

(defun run-turns (world &optional (most 200))
  "Run the loop of WORLD until it has nothing to do; MOST turns at most."
  (let ((loop (world-loop world)))
    (loop::with-taken-loop (loop (loop::take loop))
      (unwind-protect
           (loop repeat most
                 do (loop::run-turn loop)
                 while (busy-p world)
                 finally (return nil))
        (loop::hand-over loop)))))

(defun call-in-world (world function)
  "Call FUNCTION, on the loop of WORLD, and run that until it has nothing to do. Return the values."
  (let ((values '()))
    (loop:post (world-loop world)
               (lambda () (setf values (multiple-value-list (funcall function)))))
    (run-turns world)
    (values-list values)))

(defun new-end (world &key (peer "memory"))
  "The peer's end of a new connection, called PEER, in WORLD; END-BYTE-CHANNEL is the loop's."
  (let* ((end (make-end :descriptor (1+ (reduce #'max (world-ends world) :key #'end-descriptor
                                                                          :initial-value 2)))))
    (push end (world-ends world))
    (setf (end-byte-channel end)
          (loop:make-byte-channel *kind* (end-descriptor end) peer end))
    end))

(defun say (world end octets)
  "Have END say OCTETS, and the loop of WORLD take them."
  (setf (end-octets end) (concatenate 'octets (subseq (end-octets end) (end-start end)) octets)
        (end-start end) 0
        (end-news end) (logior loop:+readable+ loop:+writable+))
  (run-turns world))

(defun stop-talking (world end)
  "END says no more."
  (setf (end-ended end) t
        (end-news end) (logior loop:+readable+ loop:+writable+ loop:+ended+))
  (run-turns world))

(defun take-said (end)
  "What the loop has written to END since the last look, as octets."
  (let ((said (end-said end)))
    (prog1 (subseq-octets (buffer-octets said) (buffer-start said) (buffer-end said))
      (clear-buffer said))))
