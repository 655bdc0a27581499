//! The takeover of what an earlier broker has granted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hostbuf_os::PrivateFd;

use hostbuf_memory::memfd;

use super::requests::MAX_SEGMENTS;
use super::segment_data::{SegmentData, is_same_file};
use super::segment_record::{RowRecord, SegmentFiles, SegmentRecord, SegmentStage, segment_bytes};
use super::state::BrokerState;
use crate::segment::{RowView, SegmentFile, SpaceEvent, TableView, ViewAccess};
use crate::wire::{PoolMessage, SegmentKey, SegmentTerms};

impl BrokerState {
    /// Takes back a segment from a client of an earlier broker. Returns false if the client breaks
    /// the protocol.
    pub(super) fn hand_back(
        &mut self,
        client: u64,
        key: SegmentKey,
        terms: SegmentTerms,
        row: Option<u32>,
        stream: &str,
        descriptors: Vec<PrivateFd>,
    ) -> bool {
        if key.pool == self.pool {
            // The message with the memory of a GPU may be lost.
            let files = descriptors.into_iter().take(SegmentData::files(terms.gpu.is_some())).collect();
            if row.is_none() && !self.mapped(client, key, files) {
                return false;
            }
            self.confirm(client, key, row);
            return true;
        }
        match self.take_back(client, key, terms, row, stream, descriptors) {
            Ok(()) => {
                self.confirm(client, key, row);
                true
            }
            Err(why) => {
                tracing::warn!(%key, why, "a segment of an earlier broker is refused");
                false
            }
        }
    }

    /// Notes that a client still has a segment, or tells it that the segment has ended.
    fn confirm(&mut self, client: u64, key: SegmentKey, row: Option<u32>) {
        let segment = self.segments.get(&key).filter(|one| one.mapped_by.contains(&(client, row)));
        let Some(stage) = segment.map(|segment| segment.stage) else {
            return self.send(client, &PoolMessage::Detach { key }, Vec::new());
        };
        if let Some(record) = self.clients.get_mut(&client) {
            record.confirmed.insert((key, row));
        }
        // The message that the producer has mapped it may be lost, or the answer.
        if row.is_none() && matches!(stage, SegmentStage::Granted | SegmentStage::Live) {
            self.make_ready(client, key);
        }
    }

    /// Takes back the parts that a client did not hand back when it handed back everything: it has
    /// ended them without a connection.
    pub(super) fn handed_back(&mut self, client: u64) {
        let Some(record) = self.clients.get_mut(&client) else { return };
        record.has_handed_back = true;
        let confirmed = std::mem::take(&mut record.confirmed);
        let parts = |(key, segment): (&SegmentKey, &SegmentRecord)| {
            segment.parts_of(client).into_iter().map(|row| (*key, row)).collect::<Vec<_>>()
        };
        let all: Vec<(SegmentKey, Option<u32>)> = self.segments.iter().flat_map(parts).collect();
        for (key, row) in all.into_iter().filter(|part| !confirmed.contains(part)) {
            if row.is_none() {
                self.close(client, key);
            }
            self.detached(client, key, row);
        }
    }

    fn take_back(
        &mut self,
        client: u64,
        key: SegmentKey,
        terms: SegmentTerms,
        row: Option<u32>,
        stream: &str,
        descriptors: Vec<PrivateFd>,
    ) -> Result<(), String> {
        let text = |error: hostbuf_memory::Error| error.to_string();
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or("it lacks descriptors".to_owned());
        let (geometry, is_on_gpu) = (terms.geometry, terms.gpu.is_some());
        let data = (0..SegmentData::files(is_on_gpu)).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        let data = SegmentData::check(is_on_gpu, data, geometry)?;
        let (table, space) = (next()?, next()?);
        SegmentFile::Table.check(table.as_fd(), geometry).map_err(text)?;
        let rows: Vec<PrivateFd> = descriptors.collect();
        rows.iter().try_for_each(|row| SegmentFile::Row.check(row.as_fd(), geometry)).map_err(text)?;
        let has_all_rows = match row {
            None => rows.len() == geometry.readers() as usize,
            Some(number) => rows.len() == 1 && number < geometry.readers(),
        };
        if !has_all_rows {
            return Err("it has the wrong number of rows".into());
        }
        if !self.segments.contains_key(&key) {
            if self.segments_of(client) >= MAX_SEGMENTS {
                return Err("its client has too many segments".into());
            }
            let record = self.adopt_segment(client, terms, stream, data, table, space)?;
            self.segments.insert(key, record);
        } else if !is_same_file(&self.segments[&key].files.table, &table)
            || !self.segments[&key].files.data.is_same(&data)
            || self.segments[&key].terms != terms
        {
            return Err("another client has handed back other files".into());
        }
        let record = self.clients.get(&client).ok_or("its client has ended")?;
        let (name, entry) = (record.describe(), record.to_entry());
        let segment = self.segments.get_mut(&key).expect("it was there, or was inserted");
        match row {
            None => {
                if segment.producer.is_some_and(|other| other != client) {
                    return Err("another client is its producer".into());
                }
                segment.mapped_by.insert((client, None));
                segment.producer = Some(client);
                // A reader may have handed it back first, which does not know the stream.
                segment.producer_name = name;
                stream.clone_into(&mut segment.stream);
                segment.stage = SegmentStage::Live;
                segment.set_client(None, entry);
                for (number, file) in rows.into_iter().enumerate() {
                    take_row(segment, number, file)?;
                }
                let (charged, bytes) = (std::mem::replace(&mut segment.charged, client), segment.bytes);
                self.refund(charged, bytes);
                self.count(client, bytes);
            }
            Some(number) => {
                let number = number as usize;
                let file = rows.into_iter().next().ok_or("it lacks its row")?;
                take_row(segment, number, file)?;
                let row = segment.rows[number].as_mut().expect("it has just been taken");
                if row.reader.is_some_and(|other| other != client) {
                    return Err("another client has its row".into());
                }
                row.reader = Some(client);
                row.is_awaited = false;
                segment.mapped_by.insert((client, Some(number as u32)));
                segment.set_client(Some(number as u32), entry);
            }
        }
        Ok(())
    }

    fn adopt_segment(
        &mut self,
        client: u64,
        terms: SegmentTerms,
        stream: &str,
        data: SegmentData,
        table: PrivateFd,
        space: PrivateFd,
    ) -> Result<SegmentRecord, String> {
        let length = data.host().map(memfd::length).transpose().map_err(|error| error.to_string())?;
        let bytes = segment_bytes(terms, length.unwrap_or(0));
        if !self.can_count(bytes) {
            return Err("the sum of all sizes is not a number of 64 bits".into());
        }
        let space = SpaceEvent::from_fd(space).map_err(|error| error.to_string())?;
        let table = writable(table)?;
        let view = TableView::map(table.as_fd(), terms.geometry, ViewAccess::Write)
            .map_err(|error| error.to_string())?;
        // The bytes exist already.
        self.count(client, bytes);
        Ok(SegmentRecord {
            terms,
            stream: stream.to_owned(),
            stage: SegmentStage::Adopted,
            charged: client,
            producer_name: "a producer of an earlier broker".into(),
            producer: None,
            bytes,
            files: SegmentFiles { data, table, space },
            table: view,
            rows: (0..terms.geometry.readers()).map(|_| None).collect(),
            mapped_by: BTreeSet::new(),
            unlocked: BTreeMap::new(),
        })
    }
}

/// Adds the file of a row to a segment, unless it has it.
fn take_row(segment: &mut SegmentRecord, number: usize, file: PrivateFd) -> Result<(), String> {
    if let Some(row) = &segment.rows[number] {
        return if is_same_file(&row.file, &file) { Ok(()) } else { Err("its row is another file".into()) };
    }
    let file = writable(file)?;
    let view = RowView::map(file.as_fd(), segment.terms.geometry, ViewAccess::Write)
        .map_err(|error| error.to_string())?;
    let is_awaited = segment.table.reader(number as u32).load().is_some();
    if !is_awaited {
        // Its reader may have been given up before its file was here.
        view.clear();
        segment.files.space.notify();
    }
    segment.rows[number] = Some(RowRecord { file, view, reader: None, is_awaited });
    Ok(())
}

/// Opens a file for writing that a client has for reading only.
fn writable(file: PrivateFd) -> Result<PrivateFd, String> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map(|file| OwnedFd::from(file).into())
        .map_err(|error| format!("opening its files for writing: {error}"))
}
