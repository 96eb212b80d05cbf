;;;; The time that a server spends on compressed messages of a peer.
;;;;
;;;; A message may become a thousand times as long when it is decompressed, and all of it is
;;;; decoded: 236 octets that become 200 KB take 5 ms. So each octet that arrives earns its peer
;;;; +EARNED-OCTET-NS+ of time. If a thread needs more time than the octets earn to decompress and
;;;; decode a message, its peer owes the difference. The debt decreases at the rate of the option
;;;; decompression-percent; with P percent,
;;;;
;;;;   due = max(due, now) + owed × 100 / P
;;;;
;;;; and the peer owes (due - now) × P / 100. For example, at 25 percent a debt of 50 ms is paid
;;;; after 200 ms. Messages that do not become much longer are not timed (WIRE:DECODE-ITEM).
;;;; Uncompressed messages are not counted here, nor are messages that a client receives, whose
;;;; links have no budget.
;;;;
;;;; A message that is timed
;;;; 1. takes one of its peer's turns, of which there are as many as processors;
;;;; 2. waits until its peer owes no more than +BURST-NS+;
;;;; 3. takes one of the turns of all peers, as many as half the processors;
;;;; 4. is decompressed and decoded, and the time is charged. So a peer exceeds its budget by at
;;;;    most one message for each of its turns, and a message of another peer waits no longer than
;;;;    these messages take. A thread waits in user code, after another thread has taken its loop
;;;;    over, and checks periodically whether the call has ended.
;;;; While a thread waits for room in the heap, it keeps the turn of its peer, since it has
;;;; decompressed its message already, but not the turn of all peers.
;;;;
;;;; In a simulation no thread waits: the only thread must continue, and the work takes no virtual
;;;; time.

(in-package #:clgrpc.server)

(defconstant +earned-octet-ns+ 200
  "The decompression time, in nanoseconds, that a peer may use for each octet of a compressed
message that it sends: the time that eight octets of an ordinary call take.")
(defconstant +burst-ns+ 250000000
  "The decompression time, in nanoseconds, that a peer may use in advance before its compressed
messages wait.")
(defconstant +turn-look-seconds+ 1/10
  "The interval at which a thread that waits for its turn checks whether its call has ended.")

(defstruct (decompression-budget (:copier nil))
  "The debt of a peer for its compressed messages."
  (due-ns 0 :type sb-ext:word)          ; the time when the debt is paid; atomic
  (turns nil :type (or null sb-thread:semaphore))) ; made when needed

(declaim (sb-ext:freeze-type decompression-budget))

(define-printer (budget decompression-budget)
  "owes until ~D" (decompression-budget-due-ns budget))

(declaim (type (or null sb-thread:semaphore) **timed-turns**))
(defglobal **timed-turns** nil)         ; the turns of all peers

(defun budget-turns (budget)
  "The turns of BUDGET's peer, a semaphore."
  (or (decompression-budget-turns budget)
      (let ((new (sb-thread:make-semaphore :name "clgrpc decompression of a peer"
                                           :count (os:processor-count))))
        (or (sb-ext:compare-and-swap (decompression-budget-turns budget) nil new)
            new))))

(defun timed-turns ()
  "The turns of all peers, a semaphore."
  (or **timed-turns**
      (let ((new (sb-thread:make-semaphore :name "clgrpc timed decompression"
                                           :count (ceiling (os:processor-count) 2))))
        (or (sb-ext:compare-and-swap (symbol-value '**timed-turns**) nil new)
            new))))

(defun budget-used-p (budget)
  "True if BUDGET's peer owes time. From any thread."
  (< (loop:world-now) (decompression-budget-due-ns budget)))

(defun charge-time (budget ns percent)
  "Add NS to the debt of BUDGET's peer, which decreases by PERCENT of the time that passes. From any
thread."
  (let ((now (loop:world-now)) (ns (ceiling (* 100 ns) percent)))
    (loop
      (let ((due (decompression-budget-due-ns budget)))
        (when (= due (sb-ext:compare-and-swap (decompression-budget-due-ns budget) due
                                              (min most-positive-fixnum (+ ns (max now due)))))
          (return nil))))))

(defun wait-ns (budget percent)
  "The nanoseconds that a message of BUDGET's peer must wait; not positive if it may begin."
  (- (decompression-budget-due-ns budget) (loop:world-now)
     (ceiling (* 100 +burst-ns+) percent)))

(defun await-turn (call try)
  "Call TRY again and again until it returns true, which means that this thread may continue. TRY is
a function of the seconds that it may wait. Signal CALL's RPC-ERROR if CALL ends before its turn,
:cancelled if it ends with :ok, and :resource-exhausted if this thread must not wait. In user code."
  (declare (type function try))
  (flet ((wait ()
           (trace-event :flowctl :decompression-waits :call call)
           (loop
             (case (call-status call)
               ((nil))
               (:ok (error (status:make-rpc-error :cancelled :call call :ended-by :local
                                                  :message "the call has ended")))
               (t (error (rpc:call-condition call))))
             (when (funcall try +turn-look-seconds+) (return t)))))
    (unless (or (funcall try 0) (loop:prepare-to-wait #'wait))
      (rpc:refuse-to-wait call))))

(defun await-payment (call budget percent)
  "Wait, as AWAIT-TURN does, until BUDGET's peer owes no more than +BURST-NS+."
  (await-turn call (lambda (seconds)
                     (let ((ns (wait-ns budget percent)))
                       (when (and (plusp ns) (plusp seconds))
                         (loop:world-sleep (min seconds (ns-seconds ns)))
                         (setf ns (wait-ns budget percent)))
                       (not (plusp ns))))))

(defun call-timed (budget percent earned-ns function)
  "Call FUNCTION and return its values; charge BUDGET with the processor time that this thread uses
for it beyond EARNED-NS. FUNCTION gets a function, which it calls with true before this thread
waits, so that the time used so far is charged, and with false afterwards, so that the wait is not
charged."
  (declare (type function function))
  (let ((begin (thread-time-ns)) (left earned-ns))
    (flet ((charge-used (used)
             (let ((now (thread-time-ns)))
               (when used
                 (let ((owed (- now begin left)))
                   (setf left (max 0 (- owed)))
                   (when (plusp owed) (charge-time budget owed percent))))
               (setf begin now))))
      (unwind-protect (funcall function #'charge-used)
        (charge-used t)))))

(defun call-charged (call budget percent earned-ns function)
  "Call FUNCTION, which decompresses and decodes a message of CALL, as soon as BUDGET's peer has a
turn and owes +BURST-NS+ at most, and charge the time to BUDGET. Return its values. See AWAIT-TURN."
  (flet ((take (semaphore turn)
           (await-turn call (lambda (seconds)
                              (if (plusp seconds)
                                  (sb-thread:wait-on-semaphore semaphore :timeout seconds
                                                                         :notification turn)
                                  (sb-thread:try-semaphore semaphore 1 turn))))))
    (if (loop:simulated-p)
        (call-timed budget percent earned-ns (lambda (charge-used)
                                               (declare (ignore charge-used))
                                               (funcall function)))
        (wire:call-by-turns
         (budget-turns budget)
         (lambda ()
           (await-payment call budget percent)
           (call-timed budget percent earned-ns
                       (lambda (charge-used)
                         (wire:call-by-turns (timed-turns) function
                                             :take #'take :around-wait charge-used))))
         :take #'take))))

(defun budget-caller (budget)
  "The function for the slot BUDGET of the links of the peer that has BUDGET."
  (lambda (call came function)
    (call-charged call budget (options-decompression-percent (wire:wire-call-options call))
                  (* came +earned-octet-ns+) function)))
