;;;; Who uses etcd while things go wrong, and what must be true in the end. Each user has a client
;;;; of its own and a thread, and notes what it was told; what is not as it should be is a
;;;; complaint.

(in-package #:clgrpc.tests.faults)

(defstruct (fault-run (:conc-name run-) (:copier nil))
  "A load under way."
  (place nil :type place)
  (over nil)                            ; true once its users are to end
  (users '() :type list)                ; USERs
  (complaints '() :type list)           ; texts, the last first
  (holder nil)                          ; the lock that a user has, or had last
  (early '() :type list)                ; leases that etcd has ended before their time
  (lock (sb-thread:make-mutex :name "faults"))) ; of COMPLAINTS

(defun complain (run control &rest arguments)
  (sb-thread:with-mutex ((run-lock run))
    (push (format nil "~?" control arguments) (run-complaints run))))

(defstruct (user (:copier nil))
  "One who uses etcd."
  (run nil :type fault-run)
  (name "" :type string)
  (etcd nil)                            ; its client
  (thread nil)
  (done 0 :type integer)                ; how much it was told that it has done
  (uncertain 0 :type integer)           ; how much it perhaps has
  (failed 0 :type integer)              ; how much it has not
  (notes (make-array 1000 :adjustable t :fill-pointer 0)) ; what it was told
  (watch nil))                          ; if it watches

(defun add-user (run name function)
  "Have FUNCTION, of a user with NAME, run in a thread, which ends by itself once RUN is over."
  (let ((user (make-user :run run :name name
                         :etcd (etcd:make-etcd (place-address (run-place run)) :timeout 3
                                               :keepalive-seconds 2
                                               :backoff-maximum-seconds 0.5))))
    (push user (run-users run))
    (setf (user-thread user)
          (sb-thread:make-thread (lambda ()
                                   (handler-case (funcall function user)
                                     (error (error)
                                       (complain run "~A has ended: ~A" name error))))
                                 :name name))
    user))

(defmacro doing ((user) &body body)
  "Evaluate BODY, which does something with etcd, and count for USER what became of it. Return its
value, or nil and the condition."
  `(handler-case (prog1 (progn ,@body) (incf (user-done ,user)))
     (etcd:etcd-error (error)
       (if (etcd:etcd-error-perhaps-done-p error)
           (incf (user-uncertain ,user))
           (incf (user-failed ,user)))
       (sleep 0.05)
       (values nil error))))

(defmacro repeatedly ((user pause) &body body)
  "Evaluate BODY again and again, with a pause of PAUSE seconds, until USER's run is over."
  `(loop until (run-over (user-run ,user))
         do (progn ,@body)
            (sleep ,pause)))

(defun note (user item)
  (sb-thread:with-recursive-lock ((run-lock (user-run user)))
    (vector-push-extend item (user-notes user))))

(defun last-note (user)
  "What USER has noted last, or nil."
  (sb-thread:with-recursive-lock ((run-lock (user-run user)))
    (let ((count (length (user-notes user))))
      (and (plusp count) (aref (user-notes user) (1- count))))))

(defun numbered (name i) (format nil "~A ~D" name i))

;;; Writers: what was acknowledged is in the history

(defun write-on (user)
  (let ((i 0))
    (repeatedly (user 0.01)
      (let ((revision (doing (user)
                        (values (etcd:put (user-etcd user) (format nil "n/~A" (user-name user))
                                          (princ-to-string (incf i)))))))
        (when revision (note user (list revision i)))))))

;;; Watchers: every change, once, in order

(defun watch-on (user)
  (let ((run (user-run user)))
    (flet ((begin ()
             (etcd:watch (user-etcd user)
                         (lambda (changes revision)
                           (dolist (change changes)
                             (note user (list revision
                                              (etcd:entry-key (etcd:change-entry change))
                                              (etcd:entry-text (etcd:change-entry change))))))
                         :prefix "n/" :revision 1
                         :on-end (lambda (condition)
                                   (complain run "the watch of ~A has ended: ~A" (user-name user)
                                             condition))
                         :timeout 60)))
      (setf (user-watch user) (begin)))))

;;; Counters: increments by transactions

(defun count-on (user)
  (repeatedly (user 0.02)
    (let* ((etcd (user-etcd user))
           (entry (handler-case (etcd:fetch etcd "count")
                    (etcd:etcd-error () (sleep 0.05) nil))))
      (when entry
        ;; a transaction that finds another's increment has done nothing
        (handler-case
            (when (etcd:transact etcd
                                 :when `((:changed "count" = ,(etcd:entry-changed entry)))
                                 :then `((:put "count" ,(princ-to-string
                                                         (1+ (parse-integer
                                                              (etcd:entry-text entry)))))))
              (incf (user-done user)))
          (etcd:etcd-error (error)
            (when (etcd:etcd-error-perhaps-done-p error) (incf (user-uncertain user)))
            (sleep 0.05)))))))

;;; Keepers: who is told that a lease is alive has what was put with it
;;;
;;; Etcd itself may end a lease before its time, though it was renewed: see LEASES-END-EARLY-P. A
;;; put with the lease tells that apart from a fault of ours: the present leader of etcd takes or
;;; refuses it, as no member does by itself.

(defconstant +lease-seconds+ 4)

(defun lease-fate (user lease)
  "What etcd says of LEASE: :lasts, or :ended though LEASE is alive by USER's client; nil if it does
not say so while LEASE is."
  (let ((fate (handler-case (progn (etcd:put (user-etcd user)
                                             (format nil "probe/~A" (user-name user)) "x"
                                             :lease lease :timeout 1)
                                   :lasts)
                (etcd:lease-not-found () :ended)
                (etcd:etcd-error () nil))))
    (and (etcd:lease-alive-p lease) fate)))

(defun note-early (run lease)
  "Note that etcd has ended LEASE early if it does such things now. Return true if so."
  (when (leases-end-early-p (run-place run))
    (sb-thread:with-mutex ((run-lock run))
      (pushnew lease (run-early run)))))

(defun look-into-loss (user lease entry)
  "USER's client says that LEASE is alive, but what was put with it is ENTRY: complain, unless that
is etcd's doing, or not certain."
  (let ((run (user-run user)))
    (ecase (lease-fate user lease)
      ((nil))
      (:lasts (complain run "the lease of ~A lasts, but its entry is ~A" (user-name user) entry))
      (:ended
       (unless (note-early run lease)
         (complain run "~A is told that its lease is alive, but etcd has ended it"
                   (user-name user)))))))

(defun keep-on (user)
  (let* ((etcd (user-etcd user)) (lease nil)
         (key (format nil "kept/~A" (user-name user))))
    (repeatedly (user 0.05)
      (cond ((or (null lease) (not (etcd:lease-alive-p lease)))
             (setf lease (doing (user) (etcd:grant-lease etcd +lease-seconds+)))
             (when lease
               (unless (doing (user) (etcd:put etcd key "x" :lease lease))
                 (setf lease nil))))
            (t
             (let ((entry (handler-case (etcd:fetch etcd key :timeout 1)
                            (etcd:etcd-error () :unknown))))
               (when (and (or (null entry)
                              (and (not (eq :unknown entry))
                                   (/= (etcd:lease-id lease) (etcd:entry-lease entry))))
                          (etcd:lease-alive-p lease))
                 (look-into-loss user lease entry))))))))

;;; Lockers: one at a time has the lock, and only who has it writes under its guard

(defun lock-on (user)
  (let ((run (user-run user)) (etcd (user-etcd user)))
    (repeatedly (user 0.02)
      (let ((lock (handler-case (etcd:acquire-lock etcd "lock" :seconds +lease-seconds+ :timeout 20)
                    (etcd:etcd-error () (incf (user-failed user)) nil))))
        (when lock
          (unwind-protect (write-locked run user lock)
            (handler-case (etcd:release-lock lock)
              (etcd:etcd-error ()))))))))

(defun write-locked (run user lock)
  "Count on under LOCK, which USER has, and see that no other user of RUN has it too."
  (let ((before (shiftf (run-holder run) lock)))
    (when (and before (etcd:lock-held-p before) (etcd:lock-held-p lock)
               ;; it may have been given up between the two
               (etcd:lock-held-p before)
               (notany (lambda (lock)
                         (and (eq :ended (lease-fate user (etcd:lock-lease lock)))
                              (note-early run (etcd:lock-lease lock))))
                       (list before lock)))
      (complain run "~A has the lock, and so has another" (user-name user)))
    (let* ((etcd (user-etcd user))
           (entry (handler-case (etcd:fetch etcd "locked")
                    (etcd:etcd-error () nil))))
      (when entry
        (sleep 0.01)
        (handler-case
            (when (etcd:transact etcd :when (list (etcd:lock-guard lock))
                                      :then `((:put "locked" ,(princ-to-string
                                                               (1+ (parse-integer
                                                                    (etcd:entry-text entry)))))))
              (incf (user-done user)))
          (etcd:etcd-error (error)
            (when (etcd:etcd-error-perhaps-done-p error) (incf (user-uncertain user)))))))
    (leave-lock run lock)))

(defun leave-lock (run lock)
  (sb-thread:with-mutex ((run-lock run))
    (when (eq lock (run-holder run)) (setf (run-holder run) nil))))

;;; In the end

(defun users-named (run prefix)
  (remove-if-not (lambda (user) (uiop:string-prefix-p prefix (user-name user)))
                 (run-users run)))

(defun check-history (run history)
  "Complain unless each watcher was told HISTORY, a list of what WATCH-ON notes, and this has all
that was acknowledged."
  (let ((by-revision (make-hash-table)))
    (dolist (row history) (setf (gethash (first row) by-revision) row))
    (dolist (user (users-named run "watcher"))
      (let* ((told (coerce (user-notes user) 'list)) (difference (mismatch told history
                                                                           :test #'equal)))
        (when difference
          (complain run "~A was told ~D changes, the history has ~D; the first that differs is ~
                         ~S, not ~S"
                    (user-name user) (length told) (length history)
                    (nth difference told) (nth difference history)))))
    (dolist (user (users-named run "writer"))
      (loop for (revision i) across (user-notes user)
            for row = (gethash revision by-revision)
            unless (equal row (list revision (format nil "n/~A" (user-name user))
                                    (princ-to-string i)))
              do (complain run "~A was told that ~D is revision ~D, which is ~S" (user-name user)
                           i revision row)
                 (return)))))

(defun check-count (run etcd key name)
  "Complain unless the number at KEY is what the users whose names begin with NAME have done, and
perhaps what they perhaps have."
  (let ((count (parse-integer (etcd:entry-text (etcd:fetch etcd key :timeout 30))))
        (done (reduce #'+ (users-named run name) :key #'user-done))
        (uncertain (reduce #'+ (users-named run name) :key #'user-uncertain)))
    (unless (<= done count (+ done uncertain))
      (complain run "~A is ~D, after ~D increments and perhaps ~D more" key count done
                uncertain))))

(defun history-of (etcd last)
  "What happened to the entries of writers up to the revision LAST, asked of etcd itself."
  (let ((rows '()) (over nil))
    (let ((watch (etcd:watch etcd (lambda (changes revision)
                                    (dolist (change changes)
                                      (push (list revision
                                                  (etcd:entry-key (etcd:change-entry change))
                                                  (etcd:entry-text (etcd:change-entry change)))
                                            rows))
                                    (when (>= revision last) (setf over t)))
                             :prefix "n/" :revision 1)))
      (shared:wait-until (lambda () over) :seconds 60)
      (etcd:cancel-watch watch))
    (nreverse rows)))

(defun end-users (run)
  "Have the users of RUN end, and wait for them, but leave watches."
  (setf (run-over run) t)
  (dolist (user (run-users run)) (sb-thread:join-thread (user-thread user))))

(defun close-users (run)
  (dolist (user (run-users run)) (etcd:close-etcd (user-etcd user))))

(defun check-all (run)
  "All is well again: see that all of it is as it should be."
  (etcd:with-etcd (etcd (own-addresses (run-place run)) :timeout 30)
    (let ((last (etcd:put etcd "n/last" "x")))
      (dolist (user (users-named run "watcher"))
        (unless (shared:wait-until
                 (lambda ()
                   (let ((note (last-note user)))
                     (and note (= last (first note)))))
                 :seconds 60)
          (complain run "~A was not told the last change within a minute" (user-name user))))
      (check-history run (history-of etcd last))
      (check-count run etcd "count" "counter")
      (check-count run etcd "locked" "locker"))))

(defun begin-load (place)
  "Have users use the etcd of PLACE; return the run."
  (let ((run (make-fault-run :place place)))
    (etcd:with-etcd (etcd (place-address place) :timeout 60 :backoff-maximum-seconds 0.5)
      (etcd:put etcd "count" "0")
      (etcd:put etcd "locked" "0"))
    (dotimes (i 3) (add-user run (numbered "watcher" i) #'watch-on))
    (dotimes (i 2) (add-user run (numbered "writer" i) #'write-on))
    (dotimes (i 2) (add-user run (numbered "counter" i) #'count-on))
    (dotimes (i 2) (add-user run (numbered "keeper" i) #'keep-on))
    (dotimes (i 3) (add-user run (numbered "locker" i) #'lock-on))
    run))
