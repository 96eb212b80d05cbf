;;;; The viewers of the console, and the thread that makes updates for them. The thread exists only
;;;; while there are viewers. The thread makes an update each second. If an update takes much
;;;; processor time, the next one comes later, so that the thread never uses more than a hundredth
;;;; of a processor. Time in which the thread waits, for example for a loop that does not answer, is
;;;; not counted: updates must not become rare when they are needed most. All viewers get the same
;;;; updates. If the connection of a slow viewer has no room, its updates wait and are sent together
;;;; later. If too many updates wait they are dropped, and once the viewer has caught up it gets all
;;;; data again.

(in-package #:clgrpc.console)

(defconstant +viewers+ 16 "The maximum number of viewers of a console at one time.")
(defconstant +period-ns+ 1000000000 "The minimum time between two updates, in nanoseconds.")
(defconstant +thrift+ 100
  "A factor: the next update is due when this many times the processor time of the last one has
passed.")
(defconstant +waiting-characters+ 1000000
  "The maximum number of characters of updates that wait for a slow viewer: enough for some
minutes.")
(defconstant +update-stream-ns+ 60000000000
             "The time for which an update stream without a viewer is kept.")

(defstruct (viewer (:constructor make-viewer (request)) (:copier nil))
  "A page in a browser that shows the console, connected by a stream of events."
  ;; the viewer's response, of events, stays open
  (request nil :type exchange:http-request :read-only t)
  ;; the viewer has got all updates until now, except those that wait; only the console's thread
  ;; uses this slot and the slots below
  (current nil :type boolean)
  ;; the texts of updates that wait for the viewer, newest first
  (waiting '() :type list))

(declaim (sb-ext:freeze-type viewer))

(define-printer (viewer viewer)
  "~:[behind~;current~], ~D updates wait" (viewer-current viewer)
  (length (viewer-waiting viewer)))

(defun viewer-open-p (viewer)
  (exchange:response-open-p (viewer-request viewer)))

(defun fresh-update-stream (console now)
  "The update stream of CONSOLE, or a new one in its place if the last update of that stream is too
old at the time NOW."
  (let ((update-stream (console-update-stream console)))
    (if (and update-stream (< now (+ (update-stream-taken-ns update-stream) +update-stream-ns+)))
        update-stream
        (setf (console-update-stream console) (make-update-stream)))))

(defun send-waiting (viewer text)
  "Send VIEWER, which is current, the updates that wait for it, and then TEXT, the next one. If the
connection has no room, these texts wait. If too many texts wait then, drop them; VIEWER is then no
longer current."
  (let ((updates (cons text (viewer-waiting viewer))))
    (cond ((exchange:send-chunk (viewer-request viewer)
                              (apply #'concatenate 'string (reverse updates)))
           (setf updates '()))
          ((< +waiting-characters+ (reduce #'+ updates :key #'length))
           (setf updates '()
                 (viewer-current viewer) nil)))
    (setf (viewer-waiting viewer) updates)))

(defun send-update (console update-stream update viewers)
  "Send UPDATE of UPDATE-STREAM to each of VIEWERS that has got the previous update, and all data of
CONSOLE to the other viewers."
  (let ((text (event-text "frame" update)) (hello nil))
    (dolist (viewer viewers)
      (if (viewer-current viewer)
          (send-waiting viewer text)
          (setf (viewer-current viewer)
                (exchange:send-chunk (viewer-request viewer)
                                   (or hello
                                       (setf hello (event-text "hello"
                                                               (hello console
                                                                      update-stream))))))))))

(defun update-due-ns (now spent-ns)
  "The time at which the next update is due, after an update that was due at NOW and used SPENT-NS
of processor time."
  (+ now (max +period-ns+ (* +thrift+ spent-ns))))

(defun show-update (console viewers)
  "Make the next update of CONSOLE and send it to VIEWERS. Return the time at which the next update
is due."
  (let* ((now (monotonic-ns))
         (begin-ns (thread-time-ns))
         (update-stream (fresh-update-stream console now))
         (update (take-update console update-stream now)))
    (keep-update update-stream update)
    (send-update console update-stream update viewers)
    (update-due-ns now (- (thread-time-ns) begin-ns))))

(defun current-viewers (console)
  "The viewers of CONSOLE. If CONSOLE has no viewers, note that CONSOLE's thread, which is this
thread, ends; the next viewer starts another thread."
  (sb-thread:with-mutex ((console-lock console))
    (let ((viewers (delete-if-not #'viewer-open-p (console-viewers console))))
      (unless viewers (setf (console-thread console) nil))
      (setf (console-viewers console) viewers))))

(defun greet (console viewers)
  "Send all data to each of VIEWERS that has got nothing yet."
  (when-let ((update-stream (console-update-stream console)))
    (let ((new (remove-if #'viewer-current viewers)))
      (when new (send-update console update-stream '() new)))))

(defun wait-for-wake-up (console due-ns)
  "Wait until DUE-NS, or until a viewer of CONSOLE comes or goes."
  (sb-thread:wait-on-semaphore
   (console-semaphore console)
   ;; SBCL signals an error for a time-out of 0.0
   :timeout (ns-seconds (max 1000 (- due-ns (monotonic-ns))))))

(defun show-updates (console)
  "The function of CONSOLE's thread: make updates as long as there are viewers."
  (loop with due-ns = 0
        for viewers = (current-viewers console)
        for now = (monotonic-ns)
        while viewers
        do (loop:guarding (:console-error)
             (if (>= now due-ns)
                 (setf due-ns (+ now +period-ns+) ; if it fails
                       due-ns (show-update console viewers))
                 (greet console viewers)))
           (wait-for-wake-up console due-ns)))

(defun add-viewer (console request)
  "Begin to answer REQUEST with updates of CONSOLE, and return REQUEST. Return nil if CONSOLE has
too many viewers."
  (sb-thread:with-mutex ((console-lock console))
    (when (< (count-if #'viewer-open-p (console-viewers console)) +viewers+)
      (exchange:begin-response request :headers (safe-headers "text/event-stream"))
      (exchange:on-response-end request (lambda ()
                                        (sb-thread:signal-semaphore (console-semaphore console))))
      (push (make-viewer request) (console-viewers console))
      (if (console-thread console)
          (sb-thread:signal-semaphore (console-semaphore console))
          (setf (console-thread console)
                (sb-thread:make-thread #'show-updates :name "clgrpc console"
                                                      :arguments (list console))))
      request)))
