;;;; The keys that the store has for a state besides its own, and the transaction that stores a
;;;; draft: the new state, its history, its payloads, and the difference of the keys. The keys are a
;;;; function of the state alone, so no change leaves a superfluous key or misses a key.

(in-package #:clgrpc.workflow)

(defun state-keys (root state)
  "The list of the keys below ROOT that the store has for STATE besides its own; the empty list if
STATE is nil."
  (when state
    (let ((id (pb:workflow-state-id state)) (step (state-step state)) (time (next-time state)))
      (append (list (list-key root state))
              (and time (list (due-key root time id)))
              (and (running-p state)
                   (case (pb:step-state-status step)
                     (:ready (list (ready-key root step id)))
                     (:claimed (list (claim-key root (pb:workflow-state-session state) id)))
                     (:starting (list (errand-due-key root (pb:step-state-begun-unix-ms step)
                                                      "start" id)))))))))

(defun list-key (root state)
  (key root "by" (status-text (pb:workflow-state-status state))
       (age-text (pb:workflow-state-started-unix-ms state)) (pb:workflow-state-id state)))

(defun list-text (state)
  "The value stored at the LIST-KEY of STATE: the fields by which searches and retention choose."
  (format nil "~D ~D ~A" (pb:workflow-state-ended-unix-ms state)
          (if (running-p state) 0 (kept-octets state)) (pb:workflow-state-type state)))

(defun due-key (root time id)
  (key root "index/due" (shard-of id) (time-text time) id))

(defun errand-due-key (root time errand id)
  (key root "index/due" (shard-of id) (time-text time) errand id))

(defun ready-key (root step id)
  (key root "index/ready" (pb:step-task (pb:step-state-step step)) (shard-of id)
       (time-text (pb:step-state-begun-unix-ms step)) id))

(defun claim-key (root session id)
  (key root "claims" session id))

(defun state-key (root id)
  (key root "state" id))

(defun data-key (root id key)
  (key root "data" id key))

(defun removal-operations (root state)
  (let ((id (pb:workflow-state-id state)))
    (append (mapcar (lambda (key) (list :remove key))
                    (cons (state-key root id) (state-keys root state)))
            (list (list :remove-all :prefix (key root "steps" id ""))
                  (list :remove-all :prefix (key root "history" id ""))
                  (list :remove-all :prefix (key root "data" id ""))))))

(defun history-key (root id number)
  "The key of the chunk of changes of the workflow ID whose last number is NUMBER."
  (key root "history" id (number-text number)))

(defun history-operations (root id changes)
  "The operations that put CHANGES, of the workflow ID, into the store."
  (and changes
       (list (list :put (history-key root id (pb:change-number (first (last changes))))
                   (protobuf:serialize (pb:make-stored-changes :changes changes))))))

(defun draft-operations (root draft)
  "The operations of TRANSACT that store DRAFT, a finished one."
  (if (draft-forgotten draft)
      (removal-operations root (draft-old draft))
      (let* ((state (draft-state draft))
             (id (pb:workflow-state-id state))
             (before (state-keys root (draft-old draft)))
             (after (state-keys root state)))
        (append (list (list :put (state-key root id) (draft-octets draft)))
                (history-operations root id (draft-history draft))
                (chunk-operations root (draft-old draft) state)
                (loop for key in (set-difference before after :test #'string=)
                      collect (list :remove key))
                (loop for key in (set-difference after before :test #'string=)
                      collect (list :put key (if (string= key (list-key root state))
                                                 (list-text state)
                                                 "")))
                (loop for (key . octets) in (draft-payloads draft)
                      collect (list :put (data-key root id key) octets))
                (loop for (from . to) in (draft-removals draft)
                      collect (list :remove-all :from (key root from) :to (key root to)))
                (loop for (errand . text) in (end-errands draft)
                      collect (list :put
                                    (errand-due-key root (pb:workflow-state-ended-unix-ms state)
                                                errand id)
                                    text))))))
