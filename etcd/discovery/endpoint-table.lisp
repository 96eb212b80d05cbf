;;;; The endpoints of a name: its servers by their keys, and its service config. The input is
;;;; entries of the store, the output the addresses and the config for channels; nothing here makes
;;;; a request. No content of the store makes these functions signal an error, not even keys and
;;;; values that are not text.

(in-package #:clgrpc.discovery)

(defconstant +most-endpoints+ 10000
  "The maximum number of servers of a name; further servers are ignored.")
(defconstant +longest-key+ 4096 "The maximum number of octets of a server's key.")

(defstruct (table-entry (:constructor make-table-entry (endpoint changed)) (:copier nil))
  "A server of an endpoint table."
  (endpoint nil :type endpoint :read-only t) ; the endpoint's description
  (changed 0 :type (signed-byte 64) :read-only t)) ; the revision that has this endpoint

(defstruct (endpoint-table (:constructor make-endpoint-table (name)) (:copier nil))
  "The endpoints and the service config of a name."
  (name "" :type string :read-only t)   ; the name of the service
  ;; from key to entry; a
  (table-entries (make-hash-table :test #'equal) :type hash-table :read-only t)
                                        ; character for each octet, since a key need not be UTF-8
  (left-out nil :type boolean)          ; true if a server was omitted for lack of room
  (config nil :type (or null string)))  ; the service config's text, or nil

(declaim (sb-ext:freeze-type table-entry endpoint-table))

(define-printer (endpoint-table endpoint-table)
  "~A, ~D server~:P~:[~;, with a service config~]" (endpoint-table-name endpoint-table)
  (hash-table-count (endpoint-table-table-entries endpoint-table))
  (endpoint-table-config endpoint-table))

(defun table-entry-key (entry)
  "The key of ENTRY as a string with a character for each octet."
  (map 'string #'code-char (etcd:entry-key-octets entry)))

(defun read-endpoint (entry)
  "Return the endpoint that ENTRY, of the store, describes, or nil and the reason why it describes
none. From any thread."
  (if (< +longest-key+ (length (etcd:entry-key-octets entry)))
      (values nil "the key is too long")
      (parse-endpoint (etcd:entry-value entry))))

(defun parse-address (endpoint)
  "The target of the address of ENDPOINT; or, if the address is not valid, nil and the reason."
  (handler-case (loop:parse-target (endpoint-address endpoint))
    (misuse (error) (values nil (bounded-text error)))))

(defun warn-of-address (key endpoint)
  "Log if the address of ENDPOINT, which has just been put at KEY, is not valid."
  (multiple-value-bind (target why) (parse-address endpoint)
    (unless target
      (log-event :warning :discovery-ignored :key key :address (endpoint-address endpoint)
                                             :reason why))))

(defun note-put (endpoint-table entry)
  "Note ENTRY of the store, which is for ENDPOINT-TABLE's name. If an entry does not describe a
server, remove the endpoint of its key and return false."
  (let ((key (table-entry-key entry)) (table-entries (endpoint-table-table-entries endpoint-table)))
    (multiple-value-bind (endpoint why) (read-endpoint entry)
      (cond ((null endpoint)
             (remhash key table-entries)
             (log-event :warning :discovery-ignored :key key :reason why)
             nil)
            ((or (gethash key table-entries) (< (hash-table-count table-entries) +most-endpoints+))
             (warn-of-address key endpoint)
             (setf (gethash key table-entries)
                   (make-table-entry endpoint (etcd:entry-changed entry)))
             t)
            ((shiftf (endpoint-table-left-out endpoint-table) t) t)
            (t
             (log-event :warning :discovery-ignored :key key
                                                    :reason "the service has too many servers")
             t)))))

(defun clear-endpoint-table (endpoint-table)
  "Remove all servers from ENDPOINT-TABLE."
  (clrhash (endpoint-table-table-entries endpoint-table))
  (setf (endpoint-table-left-out endpoint-table) nil))

(defun note-change (endpoint-table change)
  "Note CHANGE, of the store, for the name of ENDPOINT-TABLE. Return false if CHANGE does not
concern a server."
  (let ((entry (etcd:change-entry change)))
    (cond ((eq :put (etcd:change-kind change)) (note-put endpoint-table entry))
          (t
           (remhash (table-entry-key entry) (endpoint-table-table-entries endpoint-table))
           t))))

(defun incomplete-p (endpoint-table)
  "True if the store has servers that ENDPOINT-TABLE has omitted, and ENDPOINT-TABLE has room for
more by now."
  (and (endpoint-table-left-out endpoint-table)
       (< (hash-table-count (endpoint-table-table-entries endpoint-table)) +most-endpoints+)))

(defun config-text (entry)
  "The text of ENTRY, a service config. A value that is not text becomes a text that is rejected as
invalid."
  (handler-case (etcd:entry-text entry)
    (invalid-utf8 () "(not UTF-8)")))

(defun note-config (endpoint-table entry)
  "Note ENTRY, or nil, as the service config of ENDPOINT-TABLE's name."
  (setf (endpoint-table-config endpoint-table) (and entry (config-text entry))))

(defun all-endpoints (endpoint-table)
  "The endpoints of ENDPOINT-TABLE in the order of their keys; of several endpoints with the same
address only the one that was written last."
  (let ((newest (make-hash-table :test #'equal)) (keys '()))
    (maphash (lambda (key table-entry)
               (push key keys)
               (let* ((address (endpoint-address (table-entry-endpoint table-entry)))
                      (known (gethash address newest)))
                 (when (or (null known)
                           (< (table-entry-changed known) (table-entry-changed table-entry)))
                   (setf (gethash address newest) table-entry))))
             (endpoint-table-table-entries endpoint-table))
    (loop for key in (sort keys #'string<)
          for table-entry = (gethash key (endpoint-table-table-entries endpoint-table))
          for endpoint = (table-entry-endpoint table-entry)
          when (eq table-entry (gethash (endpoint-address endpoint) newest))
            collect endpoint)))

(defun serving-endpoints (all)
  "Those endpoints of ALL that channels use: draining ones only if all are draining."
  (or (remove :draining all :key #'endpoint-state) all))
