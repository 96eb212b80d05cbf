;;;; A pipeline carries one signal, metrics or spans, to the collector, on a thread of its own,
;;;; which drives the loop of its own channel while it waits. So it does not use the loops of the
;;;; application. The channel has no observer: its calls are neither measured nor traced.
;;;;
;;;; A round sends all present data, as BATCHes. After a failure that may pass, metrics are
;;;; forgotten, since the next round reads them again and they are cumulative. While spans wait, no
;;;; further spans are taken; so waiting spans are bounded by the queues of the tracing, which count
;;;; spans for which there is no room. Every dropped span is counted.
;;;;
;;;; LOCK guards the slots that other threads change or wait for: WANTED, DONE, RUNG, STOPPING. Only
;;;; the pipeline's thread changes the others; other threads read the counts.

(in-package #:clgrpc.otlp)

(defconstant +silence-seconds+ 60
  "The shortest time between two reports in the log of the same failure of a pipeline.")

(defstruct (batch (:constructor make-batch (contents items)) (:copier nil))
  "The contents of one request."
  (contents nil :read-only t)           ; the argument of the pipeline's REQUEST
  (items 0 :type index :read-only t))   ; how many points or spans the batch has

(define-printer (batch batch)
  "~D item~:P" (batch-items batch))

(defstruct (tally (:copier nil))
  "The outcomes of the points or spans of a pipeline."
  (exported 0 :type (unsigned-byte 62)) ; items that the collector has accepted
  (rejected 0 :type (unsigned-byte 62)) ; items that it has refused in an answer of status ok
  (dropped 0 :type (unsigned-byte 62))  ; items of exports that failed for good or were not tried
  (overflowed 0 :type (unsigned-byte 62)) ; items that found the queue full, and were never taken
  (requests 0 :type (unsigned-byte 62)) ; exports that were tried
  (failures 0 :type (unsigned-byte 62))) ; how many requests have failed

(define-printer (tally tally)
  "~D exported, ~D rejected, ~D dropped" (tally-exported tally) (tally-rejected tally)
  (+ (tally-dropped tally) (tally-overflowed tally)))

(defstruct (pipeline (:copier nil))
  "The way of one signal to the collector."
  (signal :metrics :type signal-name :read-only t) ; the pipeline's signal
  (target "" :type string :read-only t) ; the address of the collector
  (channel nil :read-only t)            ; the channel to the collector
  (metadata '() :type list :read-only t) ; the metadata of each export
  (timeout-seconds 10 :type (real (0)) :read-only t) ; how long an export may take
  (interval-seconds 60 :type (real (0)) :read-only t) ; time from one round to the next
  ;; a function without arguments that returns batches of the present data
  (take nil :type function :read-only t)
  ;; a function of a batch's contents that returns the message
  (request nil :type function :read-only t)
  ;; a function of a batch's contents, a list, that returns the items that can be encoded; nil if a
  ;; batch cannot be divided
  (sift nil :type (or null function) :read-only t)
  ;; a function of CHANNEL, a request and options of a stub that returns how many items were
  ;; rejected, and why
  (export nil :type function :read-only t)
  (overflow nil :type function :read-only t) ; returns how many items have found no room
  (queued (constantly 0) :type function :read-only t) ; returns how many items remain to be taken
  ;; a function of an outcome, a word, and its number of items; for the metrics
  (count nil :type function :read-only t)
  (keeps nil :type boolean :read-only t) ; batches that could not be sent are sent again
  (waiting '() :type list)              ; batches that are to be sent
  (failures 0 :type index)              ; how many exports have failed in a row
  (tally (make-tally) :type tally :read-only t) ; the outcomes of its items
  ;; an alist from events of the log to the times when they may be logged again
  (told '() :type list)
  (random (loop:new-random-state) :type random-state :read-only t) ; a random state, for delays
  (thread nil)                          ; the thread that runs the pipeline
  (lock (sb-thread:make-mutex :name "clgrpc otlp") :read-only t) ; guards the slots below
  ;; notified when any slot below has changed
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc otlp") :read-only t)
  (rung nil :type boolean)              ; a batch waits
  (stopping nil :type boolean)          ; the pipeline's thread is to end
  (wanted 0 :type index)                ; the number of the last requested flush
  (done 0 :type index))                 ; the number of the last flush that is done

(declaim (sb-ext:freeze-type batch tally pipeline))

(define-printer (pipeline pipeline)
  "~(~A~) to ~A, ~A" (pipeline-signal pipeline) (pipeline-target pipeline)
  (pipeline-tally pipeline))

;;; Telling

(defun tell (pipeline level event &rest plist)
  "Log EVENT of PIPELINE, unless that was done a short while ago."
  (let ((until (cdr (assoc event (pipeline-told pipeline))))
        (now (loop:world-now)))
    (when (or (null until) (<= until now))
      (setf (pipeline-told pipeline)
            (acons event (+ now (seconds-ns +silence-seconds+))
                   (remove event (pipeline-told pipeline) :key #'car)))
      (apply #'log-event level event :signal (pipeline-signal pipeline)
             :target (pipeline-target pipeline) plist))))

(defun count-items (pipeline fate items)
  "Count ITEMS of PIPELINE with this FATE, a keyword of TALLY."
  (let ((tally (pipeline-tally pipeline)))
    (ecase fate
      (:exported (incf (tally-exported tally) items))
      (:rejected (incf (tally-rejected tally) items))
      (:dropped (incf (tally-dropped tally) items))
      (:overflowed (incf (tally-overflowed tally) items))))
  (when (plusp items)
    (funcall (pipeline-count pipeline) fate items)))

(defun count-overflow (pipeline)
  "Count the items for which there was no room since the last call of this function."
  (let* ((tally (pipeline-tally pipeline))
         (items (- (funcall (pipeline-overflow pipeline)) (tally-overflowed tally))))
    (when (plusp items)
      (count-items pipeline :overflowed items)
      (tell pipeline :warning :otlp-queue-full :items items
                                               :total (tally-overflowed tally)))))

(defun drop-batch (pipeline batch why)
  (count-items pipeline :dropped (batch-items batch))
  (tell pipeline (if (pipeline-stopping pipeline) :warning :error) :otlp-dropped
        :items (batch-items batch) :reason why
        :total (tally-dropped (pipeline-tally pipeline))))

(defun waiting-items (pipeline)
  "How many items of PIPELINE wait to be sent, taken or not. From any thread."
  (+ (reduce #'+ (pipeline-waiting pipeline) :key #'batch-items)
     (funcall (pipeline-queued pipeline))))

;;; Sending

(defun export-batch (pipeline batch)
  "Send BATCH of PIPELINE, and count its items. Signal an error if the export fails."
  (multiple-value-bind (rejected why)
      (let ((request (funcall (pipeline-request pipeline) (batch-contents batch))))
        (incf (tally-requests (pipeline-tally pipeline)))
        (funcall (pipeline-export pipeline) (pipeline-channel pipeline) request
                 :timeout (pipeline-timeout-seconds pipeline)
                 :metadata (pipeline-metadata pipeline)
                 :wait-for-ready t))
    (let ((rejected (min (max 0 rejected) (batch-items batch))))
      (count-items pipeline :exported (- (batch-items batch) rejected))
      (count-items pipeline :rejected rejected)
      (when (or (plusp rejected) (string/= "" why))
        (tell pipeline :warning :otlp-rejected :items rejected :reason why)))))

(defun failure-reason (error channel)
  "The reason why an export by CHANNEL failed with ERROR. For a deadline this is the reason why
CHANNEL had no connection meanwhile, if that is known."
  (let ((reason (and (eq :deadline-exceeded (status:rpc-error-status error))
                      (loop for address in (calling:channel-addresses channel)
                              thereis (getf address :last-error)))))
    (format nil "~A~@[: ~A~]" (status:rpc-error-message error) reason)))

(defun sift-batch (pipeline batch error)
  "If BATCH, the first that waits in PIPELINE, has failed with ERROR because some of its items
cannot be encoded, drop these items, let the others wait in BATCH's place, and return true."
  (let* ((sift (pipeline-sift pipeline))
         (contents (batch-contents batch))
         (sound (and sift (typep error 'error) (funcall sift contents))))
    (when (and sound (< (length sound) (length contents)))
      (let ((lost (set-difference contents sound)))
        (drop-batch pipeline (make-batch lost (length lost))
                    (format nil "it cannot be encoded: ~A" (bounded-text error))))
      (setf (first (pipeline-waiting pipeline)) (make-batch sound (length sound)))
      t)))

(defun count-failure (pipeline)
  (incf (tally-failures (pipeline-tally pipeline)))
  (funcall (pipeline-count pipeline) :failed 1))

(defun halve-batch (pipeline batch error)
  "If BATCH, the first that waits in PIPELINE, was refused with ERROR because its request is too
long, let its halves wait in its place, and return true."
  (let* ((contents (batch-contents batch)) (count (batch-items batch)) (half (ceiling count 2)))
    (when (and (pipeline-sift pipeline)
               (< 1 count)
               (length-refused-p error)
               (< +accepted-octets+
                  (protobuf:serialized-size (funcall (pipeline-request pipeline) contents))))
      (count-failure pipeline)
      (tell pipeline :warning :otlp-divided :items count
                                            :reason (status:rpc-error-message error))
      (setf (pipeline-waiting pipeline)
            (list* (make-batch (subseq contents 0 half) half)
                   (make-batch (nthcdr half contents) (- count half))
                   (rest (pipeline-waiting pipeline))))
      t)))

(defun try-batch (pipeline batch)
  "Send BATCH of PIPELINE. Return :done if BATCH has ended, successfully or not; :again if parts of
it wait in its place; or the seconds to wait until it may be tried again."
  (flet ((fail ()
           (count-failure pipeline)
           (incf (pipeline-failures pipeline))))
    (handler-case (export-batch pipeline batch)
      (status:rpc-error (error)
        (cond ((halve-batch pipeline batch error) :again)
              ((and (retryable-p error) (not (pipeline-stopping pipeline)))
               (fail)
               (let ((delay (delay-after error (pipeline-failures pipeline)
                                         (pipeline-random pipeline))))
                 (tell pipeline :warning :otlp-export-failed
                       :status (status:rpc-error-status error)
                       :reason (failure-reason error (pipeline-channel pipeline)))
                 delay))
              (t (fail)
                 (drop-batch pipeline batch
                             (format nil "~(~A~): ~A" (status:rpc-error-status error)
                                     (status:rpc-error-message error)))
                 :done)))
      ((or error storage-condition) (error)
        (cond ((sift-batch pipeline batch error) :again)
              (t (fail)
                 (drop-batch pipeline batch (bounded-text error))
                 :done)))
      (:no-error (&rest values)
        (declare (ignore values))
        (funcall (pipeline-count pipeline) :succeeded 1)
        (when (plusp (shiftf (pipeline-failures pipeline) 0))
          (log-event :info :otlp-export-works :signal (pipeline-signal pipeline)
                                              :target (pipeline-target pipeline)))
        :done))))

(defun send-waiting (pipeline)
  "Send the batches that wait in PIPELINE. Return nil if no batch waits, or the seconds until the
first batch may be tried again."
  (loop
    (let ((batch (first (pipeline-waiting pipeline))))
      (when (null batch) (return nil))
      (let ((outcome (try-batch pipeline batch)))
        (case outcome
          (:done (pop (pipeline-waiting pipeline)))
          (:again)
          (t (unless (pipeline-keeps pipeline) (setf (pipeline-waiting pipeline) '()))
             (return outcome)))))))

(defun run-round (pipeline)
  "Send the waiting batches of PIPELINE, and then the present data. Return nil if nothing waits, or
the seconds until the next round."
  (when (plusp (pipeline-failures pipeline))
    (calling:reset-back-off (pipeline-channel pipeline)))
  (prog1 (or (send-waiting pipeline)
             (progn (setf (pipeline-waiting pipeline) (funcall (pipeline-take pipeline)))
                    (send-waiting pipeline)))
    (count-overflow pipeline)))

(defun try-round (pipeline)
  "Do what RUN-ROUND does, and handle errors and the exhaustion of the heap, which would end the
thread."
  (handler-case (run-round pipeline)
    ((or error storage-condition) (error)
      (incf (pipeline-failures pipeline))
      (tell pipeline :error :otlp-error :reason (bounded-text error))
      (own-delay (pipeline-failures pipeline) (pipeline-random pipeline)))))

;;; The thread

(defun await-round (pipeline due-ns tried)
  "Wait until DUE-NS, or until there is an earlier reason for a round of PIPELINE: a batch, or a
flush with another number than TRIED, the last that was tried. Return the number of the last
requested flush; nil if the thread must end."
  (sb-thread:with-mutex ((pipeline-lock pipeline))
    (loop until (or (pipeline-stopping pipeline)
                    (/= tried (pipeline-wanted pipeline))
                    ;; a batch does not hasten a repeated export
                    (and (pipeline-rung pipeline) (zerop (pipeline-failures pipeline))))
          while (loop:await-notice (pipeline-waitqueue pipeline) (pipeline-lock pipeline) due-ns))
    (setf (pipeline-rung pipeline) nil)
    (and (not (pipeline-stopping pipeline))
         (pipeline-wanted pipeline))))

(defun end-flush (pipeline number)
  "Note that the flush NUMBER of PIPELINE, and all earlier flushes, are done."
  (sb-thread:with-mutex ((pipeline-lock pipeline))
    (setf (pipeline-done pipeline) (max number (pipeline-done pipeline)))
    (sb-thread:condition-broadcast (pipeline-waitqueue pipeline))))

(defun drop-rest (pipeline)
  "Drop the items that PIPELINE has not sent, because PIPELINE ends."
  (when (pipeline-keeps pipeline)
    (dolist (batch (append (shiftf (pipeline-waiting pipeline) '())
                           (ignore-errors (funcall (pipeline-take pipeline)))))
      (drop-batch pipeline batch "the exporter was stopped"))
    (count-overflow pipeline)))

(defun run-pipeline (pipeline)
  "Run PIPELINE: the function of its thread."
  (loop with interval-ns = (seconds-ns (pipeline-interval-seconds pipeline))
        with due-ns = (+ (loop:world-now) interval-ns)
        with tried = 0
        for flush = (await-round pipeline due-ns tried)
        while flush
        do (let ((delay (try-round pipeline)))
             (setf tried flush)
             (cond (delay (setf due-ns (loop:notice-end delay)))
                   (t (end-flush pipeline flush)
                      (setf due-ns (next-round due-ns interval-ns)))))
        finally (drop-rest pipeline)))

(defun next-round (due-ns interval-ns)
  "The due time of the round after the one that was due at DUE-NS: INTERVAL-NS later, or INTERVAL-NS
from now if that is past."
  (let ((next (+ due-ns interval-ns))
        (now (loop:world-now)))
    (cond ((< now due-ns) due-ns)       ; DUE-NS is not past: the round came early
          ((< now next) next)
          (t (+ now interval-ns)))))

(defun start-pipeline (pipeline)
  (setf (pipeline-thread pipeline)
        (sb-thread:make-thread #'run-pipeline
                               :name (format nil "clgrpc otlp ~(~A~)" (pipeline-signal pipeline))
                               :arguments (list pipeline)))
  pipeline)

;;; Other threads

(defun ring-pipeline (pipeline)
  "Make PIPELINE run a round soon, since a batch waits. From any thread; it does not wait."
  (unless (pipeline-rung pipeline)
    (sb-thread:with-mutex ((pipeline-lock pipeline))
      (setf (pipeline-rung pipeline) t)
      (sb-thread:condition-broadcast (pipeline-waitqueue pipeline)))))

(defun ask-for-flush (pipeline)
  "Make PIPELINE run a round; return the number of that flush."
  (sb-thread:with-mutex ((pipeline-lock pipeline))
    (sb-thread:condition-broadcast (pipeline-waitqueue pipeline))
    (incf (pipeline-wanted pipeline))))

(defun await-flush (pipeline number end-ns)
  (loop:await-until (pipeline-waitqueue pipeline) (pipeline-lock pipeline) end-ns
                    (lambda ()
                      (or (<= number (pipeline-done pipeline)) (pipeline-stopping pipeline))))
  (<= number (pipeline-done pipeline)))

(defun stop-pipeline (pipeline)
  "End the thread of PIPELINE, and its waits."
  (sb-thread:with-mutex ((pipeline-lock pipeline))
    (setf (pipeline-stopping pipeline) t)
    (sb-thread:condition-broadcast (pipeline-waitqueue pipeline)))
  (calling:close-channel (pipeline-channel pipeline))
  (let ((thread (pipeline-thread pipeline)))
    (when thread (sb-thread:join-thread thread :default nil))))
