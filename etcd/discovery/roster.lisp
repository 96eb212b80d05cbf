;;;; What is known of a name: its servers by their keys, and its service config. Entries of the
;;;; store go in, what channels are to be told comes out; nothing here asks anybody. Whatever is in
;;;; the store, keys and values that are no text among it, nothing here signals an error.

(in-package #:clgrpc.discovery)

(defconstant +most-endpoints+ 10000 "A name has so many servers at most; more are left out.")
(defconstant +longest-key+ 4096 "The key of a server has so many octets at most.")

(defstruct (seat (:constructor make-seat (endpoint changed)) (:copier nil))
  "A server of a roster."
  (endpoint nil :type endpoint :read-only t) ; what is said of it
  (changed 0 :type (signed-byte 64) :read-only t)) ; the revision that says so

(defstruct (roster (:constructor make-roster (name)) (:copier nil))
  "What is known of a name."
  (name "" :type string :read-only t)   ; of the service
  (seats (make-hash-table :test #'equal) :type hash-table :read-only t) ; from key to seat; a
                                        ; character for each octet, since a key need not be UTF-8
  (left-out nil :type boolean)          ; there was no seat for a server
  (config nil :type (or null string)))  ; the service config's text, or nil

(declaim (sb-ext:freeze-type seat roster))

(defmethod print-object ((roster roster) stream)
  (print-unreadable-object (roster stream :type t)
    (format stream "~A, ~D server~:P~:[~;, with a service config~]" (roster-name roster)
            (hash-table-count (roster-seats roster)) (roster-config roster))))

(defun seat-key (entry)
  "The key of ENTRY as a string with a character for each octet."
  (map 'string #'code-char (etcd:entry-key-octets entry)))

(defun read-endpoint (entry)
  "Return the endpoint that ENTRY, of the store, says, or nil and why it says none. From any
thread."
  (if (< +longest-key+ (length (etcd:entry-key-octets entry)))
      (values nil "its key is too long")
      (parse-endpoint (etcd:entry-value entry))))

(defun note-put (roster entry)
  "ENTRY of the store is of ROSTER's name. One that says nothing of a server leaves none; return
false then."
  (let ((key (seat-key entry)) (seats (roster-seats roster)))
    (multiple-value-bind (endpoint why) (read-endpoint entry)
      (cond ((null endpoint)
             (remhash key seats)
             (log-event :warning :discovery-ignored :key key :reason why)
             nil)
            ((or (gethash key seats) (< (hash-table-count seats) +most-endpoints+))
             (setf (gethash key seats) (make-seat endpoint (etcd:entry-changed entry)))
             t)
            ((shiftf (roster-left-out roster) t) t)
            (t
             (log-event :warning :discovery-ignored :key key :reason "there are too many")
             t)))))

(defun clear-roster (roster)
  "No server of ROSTER's name is known."
  (clrhash (roster-seats roster))
  (setf (roster-left-out roster) nil))

(defun note-change (roster change)
  "CHANGE, of the store's, is of ROSTER's name. Return false if it says nothing of a server."
  (let ((entry (etcd:change-entry change)))
    (cond ((eq :put (etcd:change-kind change)) (note-put roster entry))
          (t
           (remhash (seat-key entry) (roster-seats roster))
           t))))

(defun incomplete-p (roster)
  "True if the store has servers that ROSTER has left out, and has room for by now."
  (and (roster-left-out roster)
       (< (hash-table-count (roster-seats roster)) +most-endpoints+)))

(defun config-text (entry)
  "The text of ENTRY, a service config. What is no text at all is one that is refused as wrong."
  (handler-case (etcd:entry-text entry)
    (invalid-utf8 () "(not UTF-8)")))

(defun note-config (roster entry)
  "ENTRY, or nil, is the service config of ROSTER's name."
  (setf (roster-config roster) (and entry (config-text entry))))

(defun all-endpoints (roster)
  "The endpoints of ROSTER in the order of their keys; of several with one address the one that was
said last."
  (let ((newest (make-hash-table :test #'equal)) (keys '()))
    (maphash (lambda (key seat)
               (push key keys)
               (let* ((address (endpoint-address (seat-endpoint seat)))
                      (known (gethash address newest)))
                 (when (or (null known) (< (seat-changed known) (seat-changed seat)))
                   (setf (gethash address newest) seat))))
             (roster-seats roster))
    (loop for key in (sort keys #'string<)
          for seat = (gethash key (roster-seats roster))
          for endpoint = (seat-endpoint seat)
          when (eq seat (gethash (endpoint-address endpoint) newest))
            collect endpoint)))

(defun serving-endpoints (all)
  "Those of ALL, endpoints, that channels are to use: those that drain only if there are no others."
  (or (remove :draining all :key #'endpoint-state) all))
