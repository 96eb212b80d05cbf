;;;; A generator's notes of its calls while it runs, and the RUN made of the notes of all
;;;; generators. Noting a call that ended with OK costs some increments and no allocation.

(in-package #:clgrpc.load)

(defconstant +most-messages+ 50
  "The maximum number of different messages that are kept for each status.")

(defstruct (tally (:copier nil))
  "One generator's notes of the calls that count."
  (count 0 :type quantity) ; calls that ended
  (under-way 0 :type quantity)          ; calls that had not ended when the run was broken off
  (oldest-under-way-ns 0 :type quantity) ; how long the oldest of these had been under way
  (statuses (make-array 17 :initial-element nil) :type (simple-vector 17)) ; STATUS-ROWs, by code
  (backends '() :type list)             ; SHARE-ROWs
  (methods #() :type simple-vector)     ; of a mix, SHARE-ROWs by REQUEST-NUMBER
  (wait (make-histogram) :type histogram) ; times from the sending of a request until its call ended
  (send (make-histogram) :type histogram) ; times from getting a stream until a request was sent
  (queue (make-histogram) :type histogram) ; times from a request's due time until it had a stream
  ;; times from a call's due time until it had a stream, of calls that waited for a connection
  (connect (make-histogram) :type histogram)
  (lateness (make-histogram) :type histogram) ; how late calls were begun
  (message (make-histogram) :type histogram) ; times from one response of a stream to the next
  (seconds (make-array 64 :adjustable t :fill-pointer 0) :type vector) ; SECOND-ROWs, the last open
  (interval-seconds 1 :type (and quantity (integer 1))) ; how many seconds each row lasts
  (second (make-second-row) :type second-row) ; the last row
  (second-end-ns 0 :type nanoseconds)   ; when that ends
  (samples '() :type list)              ; SAMPLEs, the latest first
  (sample-count 0 :type index)          ; the number of samples
  (most-samples 4096 :type (and index (integer 2))) ; how many samples are kept
  (sample-every 1 :type (and quantity (integer 1))) ; one of this many calls is kept
  (messages-sent 0 :type quantity) ; requests
  (messages-received 0 :type quantity) ; responses
  (sent-octets 0 :type quantity) ; octets that all connections have sent
  (received-octets 0 :type quantity) ; octets that all connections have received
  (sent-before 0 :type quantity) ; the octets sent before the second under way
  (received-before 0 :type quantity) ; likewise
  (base-sent 0 :type quantity) ; the octets sent before anything counted
  (base-received 0 :type quantity) ; likewise
  (connects 0 :type index)              ; how many connections were made
  (ready 0 :type index)                 ; connections that are ready now
  ;; the number to add to the loop's clock to get ns since 1970
  (real-offset-ns 0 :type (unsigned-byte 62)))

(declaim (sb-ext:freeze-type tally))

(defparameter *status-names*
  #("OK" "Canceled" "Unknown" "InvalidArgument" "DeadlineExceeded" "NotFound" "AlreadyExists"
    "PermissionDenied" "ResourceExhausted" "FailedPrecondition" "Aborted" "OutOfRange"
    "Unimplemented" "Internal" "Unavailable" "DataLoss" "Unauthenticated")
  "The statuses by their codes, as grpc-go and ghz write them.")

(defun begin-tally (tally begin-ns)
  "Make TALLY count from now on; the run's first second begins at BEGIN-NS."
  (setf (tally-base-sent tally) (tally-sent-octets tally)
        (tally-base-received tally) (tally-received-octets tally)
        (tally-second-end-ns tally) begin-ns)
  (next-second tally))

(defun halve-seconds (tally)
  "Merge each pair of TALLY's rows, all of which are closed, into one row, which makes room for as
many new rows."
  (let ((rows (pair-rows (tally-seconds tally))))
    (setf (fill-pointer (tally-seconds tally)) (length rows)
          (tally-interval-seconds tally) (* 2 (tally-interval-seconds tally)))
    (replace (tally-seconds tally) rows)))

(defun next-second (tally)
  "Close the open row, if there is one, and open the next."
  (close-second tally)
  (when (= +most-rows+ (length (tally-seconds tally))) (halve-seconds tally))
  (setf (tally-second tally) (make-second-row)
        (tally-sent-before tally) (tally-sent-octets tally)
        (tally-received-before tally) (tally-received-octets tally))
  (vector-push-extend (tally-second tally) (tally-seconds tally))
  (incf (tally-second-end-ns tally) (* (tally-interval-seconds tally) +ns-per-second+))
  nil)

(defun close-second (tally)
  (let ((second (tally-second tally)))
    (setf (second-row-sent-octets second) (- (tally-sent-octets tally) (tally-sent-before tally))
          (second-row-received-octets second) (- (tally-received-octets tally)
                                                 (tally-received-before tally))
          (second-row-connections second) (tally-ready tally))))

(define-hot (keep-time :inline t) ((tally tally) (now nanoseconds)) null
  "Open rows until the last row covers NOW."
  (loop while (<= (tally-second-end-ns tally) now)
        do (next-second tally)))

(defun find-backend (tally address)
  "Return the SHARE-ROW for ADDRESS; make it if it does not exist."
  (or (find address (tally-backends tally) :key #'share-row-name :test #'string=)
      (let ((row (make-share-row :name address)))
        (push row (tally-backends tally))
        row)))

(defun ensure-status (tally code)
  (or (svref (tally-statuses tally) code)
      (setf (svref (tally-statuses tally) code)
            (make-status-row :name (aref *status-names* code) :code code))))

(defun note-message (row text)
  "Count TEXT among the messages of ROW, a STATUS-ROW; messages beyond +MOST-MESSAGES+ are counted
together."
  (let* ((messages (status-row-messages row))
         (known (assoc text messages :test #'string=)))
    (cond (known (incf (cdr known)))
          ((< (length messages) +most-messages+)
           (setf (status-row-messages row) (append messages (list (cons text 1)))))
          (t (if-let ((others (assoc "(other messages)" messages :test #'string=)))
               (incf (cdr others))
               (setf (status-row-messages row)
                     (append messages (list (cons "(other messages)" 1)))))))))

(defun keep-sample (tally intended-ns latency-ns code text)
  "Keep the call that was just counted as a sample. If TALLY then has too many samples, drop every
second sample."
  (push (make-sample :unix-ns (+ intended-ns (tally-real-offset-ns tally))
                     :latency-ns latency-ns :status (aref *status-names* code) :error text)
        (tally-samples tally))
  (when (< (tally-most-samples tally) (incf (tally-sample-count tally)))
    (setf (tally-samples tally) (loop for (sample) on (tally-samples tally) by #'cddr
                                      collect sample)
          (tally-sample-count tally) (length (tally-samples tally))
          (tally-sample-every tally) (* 2 (tally-sample-every tally)))))

(define-hot (note-share :inline t) ((row share-row) (latency nanoseconds) (code (integer 0 16)))
    null
  "Count in ROW a call that has ended with the status CODE after LATENCY."
  (incf (share-row-count row))
  (if (zerop code)
      (record-value (share-row-latency row) latency)
      (incf (share-row-errors row)))
  nil)

(defun method-rows (requests)
  "The initial value of the slot METHODS of a tally: a vector with a row for each of REQUESTS, a
list, or an empty vector if REQUESTS has a single element."
  (if (rest requests)
      (map 'simple-vector (lambda (request) (make-share-row :name (request-name request))) requests)
      #()))

(define-hot note-end ((tally tally) (backend share-row) (number index)
                      (intended-ns nanoseconds) (now nanoseconds) (code (integer 0 16))
                      (text (or null string)))
    null
  "Count in TALLY a call of the request with NUMBER that has ended, at NOW, with the status CODE,
and TEXT if that is not OK. The call was due at INTENDED-NS, and BACKEND is the row of its server."
  (let* ((latency (max 0 (- now intended-ns)))
         (row (or (svref (tally-statuses tally) code) (ensure-status tally code))))
    (declare (type status-row row) (type nanoseconds latency))
    (keep-time tally now)
    (let ((second (tally-second tally)))
      (incf (tally-count tally))
      (incf (status-row-count row))
      (note-share backend latency code)
      (unless (zerop (length (tally-methods tally)))
        (note-share (the share-row (svref (tally-methods tally) number)) latency code))
      (incf (second-row-count second))
      (record-value (status-row-latency row) latency)
      (cond ((zerop code)
             (record-value (second-row-latency second) latency))
            (t
             (incf (second-row-errors second))
             (note-message row (or text "")))))
    (when (zerop (mod (tally-count tally) (tally-sample-every tally)))
      (keep-sample tally intended-ns latency code text))
    nil))

;;; Making a run from tallies

(defun merge-seconds (tallies)
  "Return two values: the SECOND-ROWs of all TALLIES together, and the number of seconds that each
row covers."
  (let* ((interval (reduce #'max tallies :key #'tally-interval-seconds))
         (columns (loop for tally in tallies
                        collect (fit-rows (tally-seconds tally) (tally-interval-seconds tally)
                                          interval)))
         (count (reduce #'max columns :key #'length)))
    (values (coerce (loop for i below count
                          collect (merge-second-rows (loop for rows in columns
                                                           when (< i (length rows))
                                                             collect (aref rows i))
                                                     :at-once t))
                    'vector)
            interval)))

(defun fill-run (run tallies)
  "Put the counts of TALLIES, one for each generator, into RUN. Return RUN."
  (flet ((sum (reader) (reduce #'+ tallies :key reader))
         (merged (reader) (merge-histograms (mapcar reader tallies))))
    (mapc #'close-second tallies)
    (let* ((statuses (sort (merge-rows tallies
                                       (lambda (tally)
                                         (remove nil (coerce (tally-statuses tally) 'list)))
                                       #'status-row-code #'merge-status-rows)
                           #'> :key #'status-row-count))
           (ok (find 0 statuses :key #'status-row-code))
           (stages (loop for (name reader) in `(("queue" ,#'tally-queue)
                                                ("connect" ,#'tally-connect)
                                                ("send" ,#'tally-send) ("wait" ,#'tally-wait))
                         for histogram = (merged reader)
                         when (plusp (histogram-count histogram))
                           collect (cons name histogram))))
      (setf (values (run-seconds run) (run-interval-seconds run)) (merge-seconds tallies)
            (run-count run) (sum #'tally-count)
            (run-under-way run) (sum #'tally-under-way)
            (run-oldest-under-way-ns run)
            (reduce #'max tallies :key #'tally-oldest-under-way-ns)
            (run-latency run) (if ok (status-row-latency ok) (make-histogram))
            (run-all-latency run) (merge-histograms (mapcar #'status-row-latency statuses))
            (run-statuses run) statuses
            (run-backends run)
            (sort (delete 0 (merge-rows tallies #'tally-backends #'share-row-name
                                        #'merge-share-rows)
                          :key #'share-row-count)
                  #'> :key #'share-row-count)
            (run-methods run) (merge-rows tallies
                                          (lambda (tally) (coerce (tally-methods tally) 'list))
                                          #'share-row-name
                                          #'merge-share-rows)
            (run-stages run) stages
            (run-lateness run) (merged #'tally-lateness)
            (run-message-latency run) (merged #'tally-message)
            (run-octets-sent run) (- (sum #'tally-sent-octets) (sum #'tally-base-sent))
            (run-octets-received run) (- (sum #'tally-received-octets)
                                         (sum #'tally-base-received))
            (run-messages-sent run) (sum #'tally-messages-sent)
            (run-messages-received run) (sum #'tally-messages-received)
            (run-connects run) (sum #'tally-connects)
            (run-samples run) (sort (mapcan (lambda (tally) (copy-list (tally-samples tally)))
                                            tallies)
                                    #'< :key #'sample-unix-ns)))
    run))
